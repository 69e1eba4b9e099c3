"""The loop that follows the flow ODE down the sigma grid, and its default rule, Euler.

A rule says where one step leads; `multistep` and `unipc` hold rules of a higher order. Rules work element by element,
so what a model puts into the pinned slot never reaches another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from stateplay_rl.nft.schedule import next_sigmas

VelocityFn = Callable[[Tensor, Tensor], Tensor]
"""(latents [B, ...], sigma_B float32 [B]) -> velocity [B, ...]."""

PinFn = Callable[[Tensor], Tensor]
"""Latents -> latents with the condition slot overwritten."""


def pin_first_slot(first_latent_BC1HW: Tensor) -> PinFn:
    """A pin that overwrites slot 0 with the first frame's latent [B, C, 1, H, W]."""

    def pin(latents_BCfHW: Tensor) -> Tensor:
        pinned = latents_BCfHW.clone()
        pinned[:, :, :1] = first_latent_BC1HW.to(pinned)
        return pinned

    return pin


class Rule(Protocol):
    """One trajectory's way from a sigma of the grid to the next; may remember earlier steps."""

    def __call__(self, x: Tensor, velocity: Tensor, step: int) -> Tensor:
        """Latents at the end of step `step`, counted from 0, called in this order.

        Args:
            x: latents [B, ...] at `sigmas[step]`.
            velocity: of `x` there, same shape and dtype.
            step: index into the grid.
        """


RuleOf = Callable[[Tensor], Rule]
"""Falling grid [steps] -> a fresh rule; the last step ends at sigma 0."""


def solver_steps(
    rule_of: RuleOf,
    velocity_fn: VelocityFn,
    x: Tensor,
    sigmas: Tensor,
    pin: PinFn | None = None,
    latent_dtype: torch.dtype = torch.float32,
) -> Iterator[Tensor]:
    """Latents after each step of the grid, the last at sigma 0; one velocity a step.

    The public sampler keeps latents in bfloat16 between steps; float32 here is a deliberate difference, and
    `latent_dtype=torch.bfloat16` reproduces the public one. A velocity is cast first and scaled then. The pin runs
    before the first step and after each.

    Args:
        rule_of: makes the trajectory's rule.
        velocity_fn: model; gets latents in `latent_dtype` and one sigma per sample.
        x: initial noise [B, ...].
        sigmas: falling grid [steps].
        pin: overwrites the condition slot, or None where there is none.
        latent_dtype: dtype of the latents between steps.

    Yields:
        Latents [B, ...] after each step, in `latent_dtype`.
    """
    x = x.to(latent_dtype)
    if pin is not None:
        x = pin(x)
    rule = rule_of(sigmas)
    # Moved once: a copy to a GPU inside the loop would wait for everything queued there.
    for step, sigma in enumerate(sigmas.to(x.device, torch.float32)):
        x = rule(x, velocity_fn(x, sigma.expand(x.shape[0])).to(latent_dtype), step)
        if pin is not None:
            x = pin(x)
        yield x


def solve(
    rule_of: RuleOf,
    velocity_fn: VelocityFn,
    x: Tensor,
    sigmas: Tensor,
    pin: PinFn | None = None,
    latent_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Clean latents: the last of `solver_steps`.

    Raises:
        ValueError: an empty grid.
    """
    if sigmas.numel() == 0:
        raise ValueError("an empty sigma grid samples nothing")
    for latents in solver_steps(rule_of, velocity_fn, x, sigmas, pin, latent_dtype):
        x = latents
    return x


class Euler:
    """x <- x + (sigma_next - sigma) v(x, sigma): the public sampler's rule, order 1.

    Args:
        sigmas: falling grid [steps].
    """

    def __init__(self, sigmas: Tensor) -> None:
        # Differences of a float32 grid taken in float64: rounding once, not twice.
        self._deltas: list[float] = (next_sigmas(sigmas).double() - sigmas.double()).tolist()

    def __call__(self, x: Tensor, velocity: Tensor, step: int) -> Tensor:
        """See `Rule`."""
        return x + velocity * self._deltas[step]
