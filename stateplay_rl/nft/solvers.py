"""The Euler sampler of the flow ODE, a function of a velocity callable."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


def euler_steps(
    velocity_fn: VelocityFn,
    x: Tensor,
    sigmas: Tensor,
    pin: PinFn | None = None,
    latent_dtype: torch.dtype = torch.float32,
) -> Iterator[Tensor]:
    """Latents after each step of x <- x + (sigma_next - sigma) v(x, sigma), the last sigma_next = 0.

    The public sampler keeps latents in bfloat16 between steps; float32 here is a deliberate difference, and
    `latent_dtype=torch.bfloat16` reproduces the public one. The pin runs before the first step and after
    each.

    Args:
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
    # Differences of a float32 grid taken in float64: rounding once, not twice.
    deltas = (next_sigmas(sigmas).double() - sigmas.double()).tolist()
    # Moved once: a copy to a GPU inside the loop would wait for everything queued there.
    for sigma, delta in zip(sigmas.to(x.device, torch.float32), deltas, strict=True):
        sigma_B = sigma.expand(x.shape[0])
        velocity = velocity_fn(x, sigma_B)
        x = x + velocity.to(latent_dtype) * delta
        if pin is not None:
            x = pin(x)
        yield x


def euler(
    velocity_fn: VelocityFn,
    x: Tensor,
    sigmas: Tensor,
    pin: PinFn | None = None,
    latent_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Clean latents: the last of `euler_steps`.

    Raises:
        ValueError: an empty grid.
    """
    if sigmas.numel() == 0:
        raise ValueError("an empty sigma grid samples nothing")
    for latents in euler_steps(velocity_fn, x, sigmas, pin, latent_dtype):
        x = latents
    return x
