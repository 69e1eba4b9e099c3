"""Candidates of conditions: initial noise, Euler steps with the first frame pinned, stored dtype.

Shapes: B candidates, C latent channels, f latent slots, H W latent grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stateplay_rl.nft.solvers import euler, pin_first_slot
from stateplay_rl.worlds.base import ConditionBatch, PolicyName, World

STORED_DTYPE = torch.bfloat16
"""dtype of stored clean latents; training reads exactly these values."""


def initial_noise(conditions: ConditionBatch, noise: Sequence[torch.Generator]) -> Tensor:
    """Standard normal noise [B, C, f, H, W], float32 on the CPU, one generator per candidate.

    The condition slot is drawn too (and overwritten later), as in the public sampler: the same seed gives the
    same noise for slots 1...

    Raises:
        ValueError: not one CPU generator per candidate.
    """
    if len(noise) != len(conditions):
        raise ValueError(f"{len(noise)} generators for {len(conditions)} candidates")
    if any(generator.device.type != "cpu" for generator in noise):
        raise ValueError("initial noise comes from CPU generators, so that it does not depend on the device")
    _, channels, _, height, width = conditions.first_latent_BC1HW.shape
    shape = (channels, conditions.latent_frames, height, width)
    return torch.stack([torch.randn(shape, generator=generator, dtype=torch.float32) for generator in noise])


def sample_candidates(
    world: World,
    conditions: ConditionBatch,
    *,
    policy: PolicyName,
    sigmas: Tensor,
    noise: Sequence[torch.Generator] | Tensor,
    latent_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sample one candidate per row of `conditions` (rows may repeat one condition).

    States and text keys and values are computed once, not once per step. On a CPU the last bits depend on
    the number of rows: to get the same candidates after a resume, call with the same rows (one group).

    Args:
        world: the world.
        conditions: B rows of equal f.
        policy: whose velocity is followed.
        sigmas: falling grid [steps].
        noise: a CPU generator per row, or noise float32 [B, C, f, H, W] drawn before.
        latent_dtype: dtype of latents between steps; bfloat16 is the public sampler's choice.

    Returns:
        Clean latents bfloat16 [B, C, f, H, W] on the world's device; slot 0 is the first frame's latent.

    Raises:
        ValueError: noise that does not fit the conditions.
    """
    drawn = noise if isinstance(noise, Tensor) else initial_noise(conditions, noise)
    if len(drawn) != len(conditions) or drawn.shape[2] != conditions.latent_frames:
        raise ValueError(f"noise {list(drawn.shape)} does not fit {len(conditions)} rows of f slots")
    # Not inference mode: compiled blocks would be compiled once more for its tensors.
    with world.policies.use(policy), torch.no_grad():
        states = world.states(conditions)
        latents_BCfHW = euler(
            lambda x, sigma_B: world.velocity(x, sigma_B, conditions, states).velocity_BCfHW,
            drawn.to(world.device),
            sigmas,
            pin_first_slot(conditions.first_latent_BC1HW),
            latent_dtype,
        )
    return latents_BCfHW.to(STORED_DTYPE)
