"""`--dry-run`: what would run, without loading a model."""

from __future__ import annotations

from pathlib import Path

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.errors import InputError
from stateplay_rl.stages.train_nft import heldout
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.worlds.native.vae_presets import VAE_PRESETS
from stateplay_rl.worlds.world_files import resolve_world

BYTES_PER_LATENT_VALUE = 2
VIDEO_BYTES_PER_PIXEL_FRAME = 0.02
"""Measured on arena's and on Wan's videos at our encoder settings; within a factor of two."""


def make_plan(config: TrainNftConfig, conditions: Path) -> list[tuple[str, str]]:
    """Rows of (name, value): conditions, batches, steps, requests, disk.

    Raises:
        InputError: conditions or world are missing, or too few conditions.
    """
    store = ConditionStore.open(conditions)
    available = store.select("pass")
    if len(available) < config.stage_conditions:
        raise InputError(
            f"{conditions} has {len(available)} conditions of pool 'pass', {config.stage_conditions} are asked for",
            f"--set stage_conditions={len(available)}",
        )
    world = resolve_world(config.world)
    batches = -(-config.stage_conditions // config.conditions_per_batch)
    candidates = config.stage_conditions * config.sampling.candidates
    steps = config.optimizer.inner_epochs * sum(
        -(
            -min(config.conditions_per_batch, config.stage_conditions - b * config.conditions_per_batch)
            * config.sampling.candidates
            // config.optimizer.samples_per_step
        )
        for b in range(batches)
    )
    heldout.choose_heldout(store, config.heldout.conditions)
    every = config.heldout.every_batches
    # Before the first batch, every n batches, and after the last one.
    evaluations = 1 + -(-batches // every) if config.heldout.conditions else 0
    disk = candidates * _candidate_bytes(world.preset, world.frame_height, world.frame_width, available[0].frames)
    return [
        ("world", f"{world.name}, mode {config.mode}, compute {world.compute_dtype}"),
        ("conditions", f"{config.stage_conditions} of {len(available)} in the pass"),
        (
            "batches",
            f"{batches} of {config.conditions_per_batch} conditions, {config.sampling.candidates} candidates",
        ),
        (
            "sampling",
            f"{candidates} candidates, {config.sampling.steps} {config.sampling.sampler} steps each",
        ),
        ("optimizer steps", f"at most {steps} of {config.optimizer.samples_per_step} samples"),
        ("judge", f"{config.judge.name}: {config.stage_conditions} groups, one request each"),
        ("held-out", f"{evaluations} evaluations of {config.heldout.conditions} x {config.heldout.samples}"),
        ("disk", f"about {disk / 2**30:.2f} GiB of groups"),
    ]


def _candidate_bytes(preset: str, height: int, width: int, frames: int) -> float:
    vae = VAE_PRESETS[preset]
    slots = (frames - 1) // 4 + 1
    latents = vae.z_dim * slots * (height // vae.spatial_factor) * (width // vae.spatial_factor)
    return latents * BYTES_PER_LATENT_VALUE + height * width * frames * VIDEO_BYTES_PER_PIXEL_FRAME * 3
