"""The plain formulas of a block's passes over memory: what a CPU computes, and what the kernels are held against.

Shapes: B batch, f latent slots, S tokens per slot, N = f*S, D width, h heads, d head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

GELU_SLOPE, GELU_CUBE = 2 * math.sqrt(2 / math.pi), 0.044715


@dataclass(frozen=True)
class Modulation:
    """What a block adds and multiplies with, per slot: `table_16D` + `slots_Bf6D`; shift, scale and gate, twice.

    Args:
        by_kernels: whether the kernels do the work.
        rows: the sum's six rows, float32 [B, f, 1, D]; the kernels add them up themselves.
    """

    table_16D: Tensor
    slots_Bf6D: Tensor
    by_kernels: bool
    rows: tuple[Tensor, ...]

    @classmethod
    def of(cls, table_16D: Tensor, slots_Bf6D: Tensor, kernels: bool) -> Modulation:
        """For the kernels, or for the plain formulas."""
        rows = () if kernels else (table_16D.float() + slots_Bf6D.float()).unsqueeze(3).unbind(2)
        return cls(table_16D, slots_Bf6D, kernels, rows)


def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU: with 1 + tanh(u) = 2 sigmoid(2u), for which a GPU has instructions."""
    x_32 = x.float()
    return (x_32 * torch.sigmoid(GELU_SLOPE * (x_32 + GELU_CUBE * x_32**3))).to(x.dtype)


def gated_sum(base: Tensor, update: Tensor, gate: Tensor | None) -> Tensor:
    """base + update * gate, rounded, [B, f, S, D]; an update [B, f, D] is for all tokens of its slot."""
    update = update.float() if update.dim() == 4 else update.float().unsqueeze(2)
    return (base.float() + (update if gate is None else update * gate.float())).to(base.dtype)


def normed(
    hidden: Tensor,
    modulation: Modulation,
    weight_D: Tensor | None,
    bias_D: Tensor | None,
    scale: int,
    epsilon: float,
) -> Tensor:
    """Layer norm with the norm's own weights, or with a scale and the shift before it; see `add_and_norm`."""
    weight, bias = (None if w is None else w.float() for w in (weight_D, bias_D))
    x = F.layer_norm(hidden.float(), hidden.shape[-1:], weight, bias, epsilon)
    if scale >= 0:
        x = x * (1 + modulation.rows[scale]) + modulation.rows[scale - 1]
    return x.to(hidden.dtype)


def rotated(
    x_BND: Tensor, weight_D: Tensor, cos_Nd: Tensor | None, sin_Nd: Tensor | None, epsilon: float, heads: int
) -> Tensor:
    """x / rms(x) * w, rounded, then rotated where there are tables, [B, N, h, d]; see `head_rows`."""
    x = F.rms_norm(x_BND.float(), x_BND.shape[-1:], weight_D.float(), epsilon).to(x_BND.dtype)
    x_BNhd = torch.unflatten(x, 2, (heads, -1))
    if cos_Nd is None or sin_Nd is None:
        return x_BNhd
    x_BNhd = x_BNhd.float()
    return (x_BNhd * cos_Nd.unsqueeze(1) + swapped(x_BNhd) * sin_Nd.unsqueeze(1)).to(x_BND.dtype)


def swapped(x: Tensor) -> Tensor:
    """Every even element in its odd neighbour's place, and the other way round."""
    return torch.unflatten(x, -1, (-1, 2)).flip(-1).flatten(-2)
