"""What a segment will take: disk, memory, requests, money, days. Estimates, with what they rest on.

Speeds: performance.md's figures of one H200 at the real sizes, scaled; an L20 is about 7 times slower. They are to be
replaced by `sprl verify profile` of the machine itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import require_space
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.worlds.native import coupling_lora
from stateplay_rl.worlds.native.modes import trained_groups
from stateplay_rl.worlds.native.presets import NativePreset, preset
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.vae_presets import VAE_PRESETS

FLOAT32, BFLOAT16 = 4, 2
VIDEO_BYTES_PER_PIXEL_FRAME = 0.06
"""Measured on arena's and on Wan's videos at our encoder settings; within a factor of two."""
CHECKPOINT_COPIES = 4
"""live, old and two moments."""
REQUEST_IMAGE_BYTES = 10 * 2**20
"""JPEGs that one request to an API judge keeps."""
H200_SLOWER: Mapping[str, float] = {"h200": 1.0, "l20": 7.0}
H200_STEP_SECONDS, H200_DECODE_SECONDS = 0.22, 1.5
"""One Euler step; VAE decode and MP4 of one candidate: 480x832x97."""
H200_SAMPLE_SECONDS, H200_ANCHOR_SECONDS = 0.96, 0.72
"""Old forward, live forward and backward with checkpointing; the anchors' forward and backward."""
CPU_STEP_SECONDS, CPU_DECODE_SECONDS, CPU_SAMPLE_SECONDS = 0.020, 0.12, 0.065
"""arena on one core of a 2024 server."""
ACTIVATION_TENSORS = {"full": 2.1, "selective": 9.5, "off": 17.0}
"""Token-by-width tensors per block that stay for the backward, by checkpointing; measured, selective is the mean."""
DECODE_GIB_AT_FULL_SIZE, FULL_SIZE_PIXELS = 15.2, 480 * 832 * 97
SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True)
class Sizes:
    """Numbers of parameters, and bytes of one candidate on disk."""

    parameters: int
    trained: int
    candidate_bytes: float
    encoded_bytes: float


def measure_sizes(config: TrainNftConfig, world: WorldConfig, frames: int) -> Sizes:
    """Sizes from the world's preset, without loading a weight.

    Args:
        frames: of the longest video.
    """
    sizes = preset(world.preset)
    vae = VAE_PRESETS[world.preset]
    slots = (frames - 1) // 4 + 1
    latents = vae.z_dim * slots * (world.frame_height // vae.spatial_factor) * (world.frame_width // vae.spatial_factor)
    video = world.frame_height * world.frame_width * frames * VIDEO_BYTES_PER_PIXEL_FRAME
    parameters, trained = _parameters(sizes, config)
    return Sizes(parameters, trained, latents * BFLOAT16 + video, latents * BFLOAT16)


def _parameters(sizes: NativePreset, config: TrainNftConfig) -> tuple[int, int]:
    with torch.device("meta"):
        model = LatentStateTransformer(sizes.transformer, sizes.latent_state)
    trained = 0
    if config.mode in ("transition", "joint", "full"):
        plain = "transition" if config.mode == "joint" else config.mode
        trained += sum(group.count for group in trained_groups(model, plain))
    if config.mode in ("coupling", "joint"):
        linears = [model.get_submodule(name) for name in coupling_lora.target_names(model)]
        trained += sum(coupling_lora.RANK * sum(m.weight.shape) for m in linears if isinstance(m, nn.Linear))
    return sum(p.numel() for p in model.parameters()), trained


def disk_bytes(config: TrainNftConfig, sizes: Sizes, plan: SegmentPlan, evaluations: int) -> dict[str, float]:
    """Bytes that a segment will write, by what."""
    parts = {
        "groups": plan.conditions * config.sampling.candidates * sizes.candidate_bytes,
        "held-out groups": evaluations * config.heldout.conditions * config.heldout.samples * sizes.candidate_bytes,
        "encoded clips": plan.conditions * sizes.encoded_bytes,
        # One more than is kept: the new one is written before the oldest goes; and the best.
        "checkpoints": (config.keep_checkpoints + 2) * CHECKPOINT_COPIES * FLOAT32 * float(sizes.trained),
    }
    if config.uses_api:
        parts["request images"] = float(plan.conditions * REQUEST_IMAGE_BYTES)
    return parts


def memory_gib(config: TrainNftConfig, world: WorldConfig, sizes: Sizes, frames: int, ranks: int) -> dict[str, float]:
    """GiB on one device, by what; weights and training state are there all the time, the others take turns."""
    geometry, vae = preset(world.preset).transformer, VAE_PRESETS[world.preset]
    width = BFLOAT16 if world.compute_dtype == "bfloat16" else FLOAT32
    slots = (frames - 1) // 4 + 1
    grid = (world.frame_height // vae.spatial_factor // 2) * (world.frame_width // vae.spatial_factor // 2)
    tokens = slots * grid * config.optimizer.samples_per_call
    kept = ACTIVATION_TENSORS[world.gradient_checkpointing]
    shards = ranks if config.parallel.strategy == "sharded" else 1
    # live, old, reference, two moments and a gradient in float32; two float64 accumulators.
    state_bytes = sizes.trained * (6 * FLOAT32 + 2 * 8)
    pixels = world.frame_height * world.frame_width * frames
    return {
        "weights": sizes.parameters * width / shards / 2**30,
        "training state": state_bytes / 2**30,
        "activations": kept * geometry.layers * tokens * geometry.dim * width / 2**30,
        "decoding": DECODE_GIB_AT_FULL_SIZE * pixels / FULL_SIZE_PIXELS,
    }


def days(config: TrainNftConfig, world: WorldConfig, plan: SegmentPlan, evaluations: int, gpus: int) -> float:
    """Days of sampling, training and evaluating on so many GPUs (or CPU processes); judging overlaps."""
    candidate, sample = _seconds(config, world)
    total = 0.0
    for size in plan.sizes():
        total += -(-size // gpus) * config.sampling.candidates * candidate
        samples = -(-size * config.sampling.candidates // gpus) * config.optimizer.inner_epochs
        total += samples * sample * (config.sampling.steps if config.loss.full_schedule else 1)
    total += evaluations * -(-config.heldout.conditions // gpus) * config.heldout.samples * candidate
    return total / SECONDS_PER_DAY


def _seconds(config: TrainNftConfig, world: WorldConfig) -> tuple[float, float]:
    """Seconds of one candidate, and of one sample of one pass."""
    if world.preset == "arena" or config.plan.gpu == "cpu":
        return config.sampling.steps * CPU_STEP_SECONDS + CPU_DECODE_SECONDS, CPU_SAMPLE_SECONDS
    slower = H200_SLOWER[config.plan.gpu]
    candidate = config.sampling.steps * H200_STEP_SECONDS + H200_DECODE_SECONDS
    anchored = bool(config.anchors.fm_real) or bool(config.anchors.transition_real)
    anchors = H200_ANCHOR_SECONDS / config.anchors.anchor_every if anchored else 0.0
    return slower * candidate, slower * (H200_SAMPLE_SECONDS + anchors)


def evaluations_of(config: TrainNftConfig, plan: SegmentPlan) -> int:
    """Held-out evaluations: before the first batch, every n batches, and after the last one."""
    if config.heldout.conditions == 0:
        return 0
    if config.uses_api and config.heldout_requests < config.heldout.conditions:
        return 0
    wanted = (0 if plan.extension else 1) + -(-plan.batches // config.heldout.every_batches)
    return min(wanted, config.heldout_requests // config.heldout.conditions) if config.uses_api else wanted


def require_disk(
    config: TrainNftConfig, world: WorldConfig, conditions: ConditionStore, plan: SegmentPlan, out: Path
) -> None:
    """Refuse to begin what will not fit; a run that goes on has written a part of it already.

    Raises:
        OutsideError: less space is free where the run lies than its segment will take.
    """
    if plan.sealed or plan.kind == "hand" or (out / layout.CHECKPOINTS_FOLDER).is_dir():
        return
    frames = max(record.frames for record in conditions.select("pass"))
    sizes = measure_sizes(config, world, frames)
    needed = sum(disk_bytes(config, sizes, plan, evaluations_of(config, plan)).values())
    require_space(out, int(needed))
