"""The old policy's slow follow-up of the live one: old <- eta old + (1 - eta) live, after each batch.

Source: the public trainer's decay types; `eta` weighs **old**, so eta = 0 copies live.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Decay:
    """eta = min(slope (optimizer steps - flat_steps), maximum), 0 during the first flat_steps."""

    slope: float = 0.001
    maximum: float = 0.5
    flat_steps: int = 0


STANDARD = Decay()
DECAY_TYPES: Mapping[int, Decay] = {1: STANDARD, 2: Decay(slope=0.0075, maximum=0.999, flat_steps=75)}
"""The public trainer's types by number; ours is type 1, type 2 is its slower one, for comparison."""


def weight_on_old(optimizer_steps: int, decay: Decay = STANDARD) -> float:
    """eta after so many applied optimizer steps, in [0, maximum].

    Raises:
        ValueError: negative steps.
    """
    if optimizer_steps < 0:
        raise ValueError(f"optimizer steps cannot be negative, got {optimizer_steps}")
    return min(decay.slope * max(optimizer_steps - decay.flat_steps, 0), decay.maximum)


@torch.no_grad()
def update_(old: Mapping[str, Tensor], live: Mapping[str, Tensor], weight: float) -> None:
    """In place, float32: old <- weight old + (1 - weight) live.

    Args:
        old: parameters by name; overwritten.
        live: parameters of the same names and shapes; untouched.
        weight: weight on old, in [0, 1].

    Raises:
        ValueError: other names or shapes, a dtype below float32 (a bfloat16 average loses small changes),
            shared storage of old and live, or a weight outside [0, 1].
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"the weight on old must lie in [0, 1], got {weight}")
    if set(old) != set(live):
        raise ValueError(f"old and live hold different parameters: {sorted(set(old) ^ set(live))[:5]}")
    for name, value in old.items():
        source = live[name]
        if value.shape != source.shape:
            raise ValueError(f"{name}: old {tuple(value.shape)}, live {tuple(source.shape)}")
        if value.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name}: the old policy must be kept in float32, found {value.dtype}")
        if value.data_ptr() == source.data_ptr() and value.numel() > 0:
            raise ValueError(f"{name}: old and live are the same tensor")
    for name, value in old.items():
        source = live[name].to(value)
        if weight == 0.0:
            value.copy_(source)  # exact, and clears a non-finite old value
        else:
            value.mul_(weight).add_(source, alpha=1.0 - weight)
