"""Numbers of parameters, and bytes of what a run writes, from a world's preset: no weight is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.judges.payload import text_tokens
from stateplay_rl.judges.request_size import GroupShape
from stateplay_rl.stages.group_size import candidate_bytes, latent_bytes
from stateplay_rl.stores.conditions import ConditionRecord
from stateplay_rl.worlds.native import coupling_lora
from stateplay_rl.worlds.native.modes import trained_groups
from stateplay_rl.worlds.native.presets import NativePreset, preset
from stateplay_rl.worlds.native.text import TEXT_PRESETS
from stateplay_rl.worlds.native.transformer import LatentStateTransformer

FLOAT32, INT64 = 4, 8
REAL_VIDEO_BYTES: dict[str, float] = {"arena": 0.08, "stateplay-5b": 0.06}
"""Per pixel and frame of a reference video: arena's as measured in a demo's groups, the other within a factor 2."""
PICTURE_BYTES = 1.6
"""Per pixel of a first frame as PNG: the real game's take 1.4 to 1.6."""
GROUP_RECORD_BYTES = 10_000
"""`group.json`, and the group's lines in logs and tables."""


@dataclass(frozen=True)
class Sizes:
    """Parameters of the transformer, and bytes on disk.

    Args:
        parameters: all of them.
        trained: those that the mode trains.
        exported: those that an exported policy holds: a LoRA is merged into the weights that it wraps.
        candidate_bytes: latents and video of one candidate.
        group_bytes: what a group holds beside its candidates: first frame, reference video, records.
        encoded_bytes: of a condition in `encoded/`.
    """

    parameters: int
    trained: int
    exported: int
    candidate_bytes: float
    group_bytes: float
    encoded_bytes: float


def largest_shape(records: Sequence[ConditionRecord], world: WorldConfig, candidates: int) -> GroupShape:
    """A group that no group of these conditions exceeds in anything."""
    return GroupShape(
        candidates=candidates,
        frames=max(record.frames for record in records),
        rows=max(record.action_rows for record in records),
        fps=min(record.fps for record in records),
        width=world.frame_width,
        height=world.frame_height,
        prompt=max((record.prompt for record in records), key=len),
    )


def measure_sizes(config: TrainNftConfig, world: WorldConfig, shape: GroupShape) -> Sizes:
    """Sizes of a world's preset for groups of a shape."""
    networks = preset(world.preset)
    slots = (shape.frames - 1) // 4 + 1
    pixels = shape.height * shape.width
    text = TEXT_PRESETS[world.preset]
    context = min(text.tokens, text_tokens(len(shape.prompt)) + 1) * text.d_model * FLOAT32
    codes = (slots - 1) * networks.latent_state.state_tokens * INT64
    parameters, trained, exported = _parameters(networks, config)
    return Sizes(
        parameters,
        trained,
        exported,
        candidate_bytes=candidate_bytes(world, shape.frames),
        group_bytes=pixels * (PICTURE_BYTES + shape.frames * REAL_VIDEO_BYTES[world.preset]) + GROUP_RECORD_BYTES,
        encoded_bytes=latent_bytes(world, shape.frames) + latent_bytes(world, 1) + context + codes,
    )


def _parameters(sizes: NativePreset, config: TrainNftConfig) -> tuple[int, int, int]:
    with torch.device("meta"):
        model = LatentStateTransformer(sizes.transformer, sizes.latent_state)
    trained = exported = 0
    if config.mode in ("transition", "joint", "full"):
        plain = "transition" if config.mode == "joint" else config.mode
        trained = exported = sum(group.count for group in trained_groups(model, plain))
    if config.mode in ("coupling", "joint"):
        linears = [model.get_submodule(name) for name in coupling_lora.target_names(model)]
        weights = [module.weight for module in linears if isinstance(module, nn.Linear)]
        trained += sum(coupling_lora.RANK * sum(weight.shape) for weight in weights)
        exported += sum(weight.numel() for weight in weights)
    return sum(p.numel() for p in model.parameters()), trained, exported
