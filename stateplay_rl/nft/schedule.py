"""The sampling grid and the 1000-step training grid of Wan2.2 flow matching.

Source: the public trainer's `FlowMatchScheduler` (Wan template) and its training weight. The shift changes
the grid only; a velocity is never multiplied by its derivative. Sampling and training are two objects that
share nothing, so that no call can leave one with the other's grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHIFT = 5.0
TRAIN_TIMESTEPS = 1000


def shifted_sigmas(steps: int, shift: float = SHIFT, dtype: torch.dtype = torch.float32) -> Tensor:
    """sigma = shift u / (1 + (shift - 1) u), u = linspace(1, 0, steps + 1)[:-1].

    In float32 the values are bitwise those of the public scheduler, which computes in float32 too.

    Args:
        steps: number of sigmas, at least 1.
        shift: grid shift, above 0; 1 is the uniform grid.
        dtype: float32 or float64.

    Returns:
        Tensor [steps], falling, the first 1, the last above 0, no unit.

    Raises:
        ValueError: steps below 1 or shift not above 0.
    """
    if steps < 1:
        raise ValueError(f"a sampling grid needs at least 1 step, got {steps}")
    if not shift > 0:
        raise ValueError(f"the grid shift must be above 0, got {shift}")
    u = torch.linspace(1, 0, steps + 1, dtype=dtype)[:-1]
    return shift * u / (1 + (shift - 1) * u)


def sampling_sigmas(steps: int, shift: float = SHIFT, dtype: torch.dtype = torch.float32) -> Tensor:
    """The sigmas at which a candidate is sampled, and at which the NFT loss draws its noise levels.

    Hand values: 4 steps, shift 5 -> 1, 15/16, 5/6, 5/8. See `shifted_sigmas` for arguments and errors.
    """
    return shifted_sigmas(steps, shift, dtype)


def next_sigmas(sigmas: Tensor) -> Tensor:
    """The sigma that each step ends at: the grid moved by one, the last one 0.

    Args:
        sigmas: [steps], falling.

    Returns:
        [steps], same dtype and device.
    """
    return torch.cat([sigmas[1:], sigmas.new_zeros(1)])


def model_timestep(sigma: Tensor) -> Tensor:
    """What the transformer is told: 1000 sigma, in 0..1000, same shape and dtype.

    The cast to the compute dtype belongs to the model, before its sinusoidal embedding: in bfloat16 only
    multiples of 4 exist above 512.
    """
    return sigma * TRAIN_TIMESTEPS


@dataclass(frozen=True)
class TrainingGrid:
    """The supervised trainer's grid with its loss weights; used by the real-clip anchor only.

    w = y_s * 1000 / sum(y_s), y_s = y - min(y), y = exp(-2 ((t - 500) / 1000)^2), t = 1000 sigma.
    The NFT loss never uses these weights. Build it with `TrainingGrid.build`.

    Args:
        sigmas: float32 [steps].
        timesteps: float32 [steps], 1000 sigma.
        weights: float32 [steps], mean 1 for 1000 steps; 0 at sigma = 1.
    """

    sigmas: Tensor
    timesteps: Tensor
    weights: Tensor

    @classmethod
    def build(cls, steps: int = TRAIN_TIMESTEPS, shift: float = SHIFT) -> TrainingGrid:
        """The grid of `steps` sigmas, in float32 as the public trainer computes it (bitwise equal).

        For another length than 1000 the public trainer rescales the weights and adds the second one to all;
        that empirical rule is reproduced here.
        """
        sigmas = shifted_sigmas(steps, shift)
        timesteps = model_timestep(sigmas)
        bell = torch.exp(-2 * ((timesteps - TRAIN_TIMESTEPS / 2) / TRAIN_TIMESTEPS) ** 2)
        bell = bell - bell.min()
        weights = bell * (TRAIN_TIMESTEPS / bell.sum())
        if steps != TRAIN_TIMESTEPS:
            if steps < 2:
                raise ValueError(f"a training grid needs at least 2 steps, got {steps}")
            weights = weights * (steps / TRAIN_TIMESTEPS)
            weights = weights + weights[1]
        return cls(sigmas=sigmas, timesteps=timesteps, weights=weights)

    def __len__(self) -> int:
        return int(self.sigmas.shape[0])

    def at(self, index_B: Tensor) -> tuple[Tensor, Tensor]:
        """Sigmas and weights [B], float32, of the drawn grid indices (int64 [B])."""
        return self.sigmas[index_B], self.weights[index_B]
