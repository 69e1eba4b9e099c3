"""The forward process: clean latents, noise and one sigma per sample to noised latents.

Shapes: B samples, C latent channels, f latent slots, H W latent height and width. Slot 0 holds the first
frame: it is a condition, never noised, and stands outside every loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if every tensor is float64, else float32: losses are never computed in half precision."""
    return torch.float64 if all(t.dtype == torch.float64 for t in tensors) else torch.float32


def per_sample(value_B: Tensor, like: Tensor) -> Tensor:
    """[B] -> [B, 1, ...] with as many dimensions as `like`, in its dtype and on its device."""
    return value_B.to(like).reshape(-1, *[1] * (like.dim() - 1))


def require(fine: Tensor, message: Callable[[], str]) -> None:
    """Check a scalar of truth; on a GPU the device itself asserts it, because asking would make the host wait.

    Raises:
        ValueError: it is false (on a GPU: a device-side assertion, with the next call that waits).
    """
    if fine.device.type == "cuda":
        torch._assert_async(fine, "a value of the loss is out of range")
    elif not bool(fine):
        raise ValueError(message())


@dataclass(frozen=True)
class Noised:
    """One noised sample per row.

    Args:
        x0: clean latents [B, C, f, H, W]; the stored bfloat16 ones of the rollout, upcast.
        eps: fresh noise, same shape.
        x_sigma: noised latents, same shape; slot 0 is the first frame's latent if one was given.
        sigma_B: noise levels in (0, 1].
    """

    x0: Tensor
    eps: Tensor
    x_sigma: Tensor
    sigma_B: Tensor

    @property
    def velocity_target(self) -> Tensor:
        """eps - x0 [B, C, f, H, W]: the flow-matching velocity (meaningless in slot 0)."""
        return self.eps - self.x0


def noised(x0: Tensor, eps: Tensor, sigma_B: Tensor, first_latent: Tensor | None = None) -> Noised:
    """x_sigma = (1 - sigma) x0 + sigma eps, then slot 0 <- first-frame latent.

    Args:
        x0: clean latents [B, C, f, H, W].
        eps: standard normal noise of the same shape.
        sigma_B: noise levels [B] in [0, 1].
        first_latent: [B, C, 1, H, W], or None when the tensors hold no condition slot.

    Returns:
        `Noised` in float64 if both inputs are, else float32.

    Raises:
        ValueError: shapes that do not belong together, or a sigma outside [0, 1].
    """
    if x0.shape != eps.shape:
        raise ValueError(f"x0 {tuple(x0.shape)} and eps {tuple(eps.shape)} differ in shape")
    if sigma_B.shape != x0.shape[:1]:
        raise ValueError(f"one sigma per sample: {tuple(sigma_B.shape)} for {x0.shape[0]} samples")
    require(~((sigma_B < 0) | (sigma_B > 1)).any(), lambda: f"sigma outside [0, 1]: {sigma_B.tolist()}")
    dtype = working_dtype(x0, eps)
    x0, eps = x0.to(dtype), eps.to(dtype)
    sigma = per_sample(sigma_B, x0)
    x_sigma = (1 - sigma) * x0 + sigma * eps
    if first_latent is not None:
        if first_latent.shape != x0[:, :, :1].shape:
            raise ValueError(f"first-frame latent {tuple(first_latent.shape)} for x0 {tuple(x0.shape)}")
        x_sigma[:, :, :1] = first_latent.to(dtype)
    return Noised(x0=x0, eps=eps, x_sigma=x_sigma, sigma_B=sigma_B)


def without_condition_slot(latents_BCfHW: Tensor) -> Tensor:
    """The slots that a loss may see: [B, C, f, H, W] -> [B, C, f - 1, H, W].

    Raises:
        ValueError: fewer than two slots, so that nothing would be left.
    """
    if latents_BCfHW.dim() != 5 or latents_BCfHW.shape[2] < 2:
        raise ValueError(f"need [B, C, f >= 2, H, W] latents with slot 0, got {tuple(latents_BCfHW.shape)}")
    return latents_BCfHW[:, :, 1:]
