"""A made-up batch for a world with random weights: what benchmarks of training need.

Text contexts are random: no text encoder is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stateplay_rl.nft.randomness import DrawKey, normal
from stateplay_rl.stages.train_nft.draws import RealClip
from stateplay_rl.worlds.base import ConditionBatch
from stateplay_rl.worlds.native.world import NativeWorld

PROMPT_TOKENS = 24


@dataclass
class Batch:
    """Made-up conditions and clips of a world, and the candidates that were sampled."""

    world: NativeWorld
    ids: tuple[str, ...]
    slots: int
    text: tuple[int, int]
    conditions: dict[str, ConditionBatch] = field(default_factory=dict)
    clips: dict[str, RealClip] = field(default_factory=dict)
    latents: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def prepare(self) -> None:
        """Encode a random first frame per condition; clips are random latents with their codes."""
        spec, device = self.world.spec, self.world.device
        for condition_id in self.ids:
            draws = np.random.default_rng(DrawKey(0, "frame", condition=condition_id).seed())
            frame_1hwC = draws.integers(0, 256, (1, spec.frame_height, spec.frame_width, 3), dtype=np.uint8)
            first_C1HW = self.world.encode_video(frame_1hwC)
            text_1LD = normal(DrawKey(0, "text", condition=condition_id), (1, *self.text))
            text_1LD[:, PROMPT_TOKENS:] = 0
            actions = draws.integers(0, 2, (1, self.slots, spec.buttons)).astype(np.float32)
            self.conditions[condition_id] = ConditionBatch(
                (condition_id,), first_C1HW[None].to(device), torch.from_numpy(actions).to(device), text_1LD.to(device)
            )
            shape = (spec.latent_channels, self.slots, *first_C1HW.shape[-2:])
            clip = normal(DrawKey(0, "clip", condition=condition_id), shape)
            self.clips[condition_id] = RealClip(clip, self.world.transition_codes(clip[None].to(device))[0].cpu())

    def conditions_of(self, ids: Sequence[str]) -> ConditionBatch:
        """Rows of one condition a call, as training asks for them."""
        parts = [self.conditions[i] for i in ids]
        return ConditionBatch(
            tuple(ids),
            torch.cat([p.first_latent_BC1HW for p in parts]),
            torch.cat([p.action_bins_BfK for p in parts]),
            torch.cat([p.text_BLD for p in parts]),
        )
