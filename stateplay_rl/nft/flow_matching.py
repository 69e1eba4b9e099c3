"""Supervised losses on a condition's own real clip: the anchors of the policy update.

Source: the supervised trainer (flow-matching MSE with slot 0 excluded, times its training weight;
cross-entropy of the next state codes). Shapes: B samples, C f H W latents, M state tokens per slot, V
codes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from stateplay_rl.nft.forward import Noised, require, without_condition_slot, working_dtype


def flow_matching_loss(sample: Noised, velocity: Tensor, weight_B: Tensor, *, has_condition_slot: bool) -> Tensor:
    """w mean((v - (eps - x0))^2) per sample, over the slots after the condition.

    Args:
        sample: the noised real clip, at a sigma of the 1000-step training grid.
        velocity: the live policy's velocity [B, C, f, H, W].
        weight_B: that grid's training weights [B].
        has_condition_slot: True if the tensors hold slot 0, which is then left out.

    Returns:
        [B] in float64 if everything is float64, else float32.

    Raises:
        ValueError: shapes that do not belong together.
    """
    if velocity.shape != sample.x0.shape or weight_B.shape != sample.x0.shape[:1]:
        raise ValueError(
            f"velocity {tuple(velocity.shape)}, weight {tuple(weight_B.shape)} for x0 {tuple(sample.x0.shape)}"
        )
    dtype = working_dtype(sample.x0, velocity)
    error = velocity.to(dtype) - sample.velocity_target.to(dtype)
    if has_condition_slot:
        error = without_condition_slot(error)
    return weight_B.to(error) * error.flatten(1).square().mean(dim=1)


def transition_cross_entropy(logits_BfMV: Tensor, codes_BfM: Tensor) -> Tensor:
    """Mean cross-entropy per sample of the predicted codes, in float32 or better.

    Args:
        logits_BfMV: [B, f - 1, M, V].
        codes_BfM: int64 [B, f - 1, M] in 0..V-1, from the frozen tokenizer.

    Returns:
        [B], in nats.

    Raises:
        ValueError: other shapes, or a code outside the codebook.
    """
    if logits_BfMV.shape[:-1] != codes_BfM.shape:
        raise ValueError(f"logits {tuple(logits_BfMV.shape)} for codes {tuple(codes_BfM.shape)}")
    codes = logits_BfMV.shape[-1]
    inside = ((codes_BfM >= 0) & (codes_BfM < codes)).all()
    require(inside, lambda: f"a code lies outside 0..{codes - 1}")
    logits = logits_BfMV if logits_BfMV.dtype == torch.float64 else logits_BfMV.float()
    nats = functional.cross_entropy(logits.flatten(0, -2), codes_BfM.flatten(), reduction="none")
    return nats.reshape(codes_BfM.shape[0], -1).mean(dim=1)
