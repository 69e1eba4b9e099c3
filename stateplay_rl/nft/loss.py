"""The DiffusionNFT policy loss on the forward process.

Source: arXiv 2509.16117, equations 3-6 and Algorithm 1; public trainer of the same authors. Differences:
latent slot 0 is a condition and outside everything; the public trainer's per-sample weight |e| is kept,
with its floor of 1e-5, and named `scale`. Shapes: B samples; latents [B, C, f, H, W].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stateplay_rl.nft.forward import Noised, per_sample, require, without_condition_slot, working_dtype

SCALE_FLOOR = 1e-5


@dataclass(frozen=True)
class NFTLoss:
    """Per-sample results, all [B] in the working dtype; only `loss_per_sample` carries what is minimised.

    The caller sums `loss_per_sample` and divides by the *global* number of effective samples of the optimizer
    step: a mean over a local batch would depend on the number of ranks.
    """

    loss_per_sample: Tensor
    pos: Tensor
    neg: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean over this batch's samples, a scalar."""
        return self.loss_per_sample.mean()


def implicit_velocities(v_old: Tensor, v_live: Tensor, beta_nft: float) -> tuple[Tensor, Tensor]:
    """v_pos = (1 - b) v_old + b v_live and v_neg = (1 + b) v_old - b v_live (the paper's equation 5)."""
    return (1 - beta_nft) * v_old + beta_nft * v_live, (1 + beta_nft) * v_old - beta_nft * v_live


def _check(sample: Noised, v_live: Tensor, v_old: Tensor, r_B: Tensor, beta_nft: float) -> None:
    shape = sample.x0.shape
    if v_live.shape != shape or v_old.shape != shape:
        raise ValueError(f"velocities {tuple(v_live.shape)}, {tuple(v_old.shape)} for x0 {tuple(shape)}")
    if r_B.shape != shape[:1]:
        raise ValueError(f"one r per sample: {tuple(r_B.shape)} for {shape[0]} samples")
    require(((r_B >= 0) & (r_B <= 1)).all(), lambda: f"optimality r outside [0, 1]: {r_B.tolist()}")
    if not beta_nft > 0:
        raise ValueError(f"beta_nft must be above 0, got {beta_nft}")


def _normalised_error(sample: Noised, velocity: Tensor, has_condition_slot: bool) -> Tensor:
    """mean(e^2) / d per sample [B]: e = x_s - sigma v - x0, d = stop_gradient(max(mean|e|, 1e-5))."""
    sigma = per_sample(sample.sigma_B, velocity)
    error = sample.x_sigma.to(velocity) - sigma * velocity - sample.x0.to(velocity)
    if has_condition_slot:
        error = without_condition_slot(error)
    error = error.flatten(1)
    # No gradient through the scale: it rescales each video's step, it is not a part of the objective. Its sum
    # over some million elements is taken in float64.
    scale = error.detach().abs().mean(dim=1, dtype=torch.float64).clamp(min=SCALE_FLOOR)
    return error.square().mean(dim=1) / scale.to(error.dtype)


def nft_loss(
    sample: Noised,
    v_live: Tensor,
    v_old: Tensor,
    r_B: Tensor,
    *,
    beta_nft: float,
    advantage_clip: float,
    has_condition_slot: bool,
) -> NFTLoss:
    """(advantage_clip / b) (r L_pos + (1 - r) L_neg) per sample.

    L = mean(e^2) / d, e = x_s - sigma v - x0, d = stop_gradient(max(mean|e|, 1e-5)), per video and sign.

    Args:
        sample: noised latents; see `forward.noised`.
        v_live: the live policy's velocity at `x_sigma`, with gradient.
        v_old: the old policy's velocity at the same input; detached here whatever its state.
        r_B: optimality in [0, 1].
        beta_nft: strength b of the implicit policies, above 0.
        advantage_clip: the clip that r was made with.
        has_condition_slot: True if the tensors hold slot 0, which is then left out; False if it was cut off
            before. There is no default: guessing it wrong would train on the condition.

    Returns:
        `NFTLoss` in float64 if everything is float64, else float32.

    Raises:
        ValueError: shapes, r or beta_nft out of range.
    """
    _check(sample, v_live, v_old, r_B, beta_nft)
    dtype = working_dtype(sample.x0, v_live, v_old)
    v_pos, v_neg = implicit_velocities(v_old.detach().to(dtype), v_live.to(dtype), beta_nft)
    pos = _normalised_error(sample, v_pos, has_condition_slot)
    neg = _normalised_error(sample, v_neg, has_condition_slot)
    r = r_B.to(pos)
    loss = (advantage_clip / beta_nft) * (r * pos + (1 - r) * neg)
    return NFTLoss(loss_per_sample=loss, pos=pos, neg=neg)


def paper_velocity_mse(
    sample: Noised,
    v_live: Tensor,
    v_old: Tensor,
    r_B: Tensor,
    *,
    beta_nft: float,
    has_condition_slot: bool,
) -> NFTLoss:
    """The paper's equation 5: r |v_pos - v|^2 + (1 - r) |v_neg - v|^2 with v = eps - x0, mean over elements.

    Without the scale d and without advantage_clip / b. Arguments, returns and errors as in `nft_loss`.
    """
    _check(sample, v_live, v_old, r_B, beta_nft)
    dtype = working_dtype(sample.x0, v_live, v_old)
    v_pos, v_neg = implicit_velocities(v_old.detach().to(dtype), v_live.to(dtype), beta_nft)
    target = sample.velocity_target.to(dtype)
    errors = []
    for velocity in (v_pos, v_neg):
        error = velocity - target
        if has_condition_slot:
            error = without_condition_slot(error)
        errors.append(error.flatten(1).square().mean(dim=1))
    pos, neg = errors
    r = r_B.to(pos)
    return NFTLoss(loss_per_sample=r * pos + (1 - r) * neg, pos=pos, neg=neg)
