"""Candidates of conditions: initial noise, steps of the flow ODE with the first frame pinned, stored dtype.

Shapes: B candidates, C latent channels, f latent slots, H W latent grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from stateplay_rl.nft.samplers import TaylorCache
from stateplay_rl.nft.solvers import Euler, RuleOf, VelocityFn, pin_first_slot, solve
from stateplay_rl.worlds.base import ConditionBatch, PolicyName, World

STORED_DTYPE = torch.bfloat16
"""dtype of stored clean latents; training reads exactly these values."""


@dataclass(frozen=True)
class SamplingMethod:
    """How noise becomes a candidate; the default is the public sampler's rule with every velocity computed.

    Args:
        rule_of: rule of a step.
        taylor_every: with the Taylor cache: one step of so many is computed.
        first_block: with the first-block cache: its threshold.
        latent_dtype: dtype of latents between steps; bfloat16 is the public sampler's choice.
    """

    rule_of: RuleOf = Euler
    taylor_every: int | None = None
    first_block: float | None = None
    latent_dtype: torch.dtype = torch.float32

    @property
    def is_euler(self) -> bool:
        """Every velocity computed, plain Euler steps."""
        return self.rule_of is Euler and self.taylor_every is None and self.first_block is None


PLAIN = SamplingMethod()


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
    method: SamplingMethod = PLAIN,
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
        method: rule, caches and dtype of the steps. A checkout's own sampler takes the place of plain Euler steps.

    Returns:
        Clean latents bfloat16 [B, C, f, H, W] on the world's device; slot 0 is the first frame's latent.

    Raises:
        ValueError: noise that does not fit the conditions.
    """
    drawn = noise if isinstance(noise, Tensor) else initial_noise(conditions, noise)
    if len(drawn) != len(conditions) or drawn.shape[2] != conditions.latent_frames:
        raise ValueError(f"noise {list(drawn.shape)} does not fit {len(conditions)} rows of f slots")
    noise_BCfHW = drawn.to(world.device)
    # Not inference mode: compiled blocks would be compiled once more for its tensors.
    with world.policies.use(policy), torch.no_grad():
        if world.own_sampler is not None and method.is_euler:
            latents_BCfHW = world.own_sampler(noise_BCfHW, sigmas, conditions)
        else:
            latents_BCfHW = solved_candidates(world, conditions, noise_BCfHW, sigmas, method)
    return latents_BCfHW.to(STORED_DTYPE)


def solved_candidates(
    world: World, conditions: ConditionBatch, noise_BCfHW: Tensor, sigmas: Tensor, method: SamplingMethod = PLAIN
) -> Tensor:
    """This package's own loop under the current policy, clean latents in the method's dtype."""
    caching = nullcontext() if method.first_block is None else world.first_block_cache(method.first_block)
    with caching:
        states = world.states(conditions)

        def velocity(x: Tensor, sigma_B: Tensor) -> Tensor:
            return world.velocity(x, sigma_B, conditions, states).velocity_BCfHW

        velocity_fn: VelocityFn = velocity
        if method.taylor_every is not None:
            velocity_fn = TaylorCache(velocity, method.taylor_every)
        pinned = pin_first_slot(conditions.first_latent_BC1HW)
        return solve(method.rule_of, velocity_fn, noise_BCfHW, sigmas, pinned, method.latent_dtype)
