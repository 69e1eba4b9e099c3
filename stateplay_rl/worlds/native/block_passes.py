"""A block's passes over memory, each as one kernel: a residual sum with the norm behind it, and the norm of heads.

What is between a block's matrix products moves tensors of [N, D] and computes next to nothing. Compiled code reads
modulation anew for every token, which costs more than the token; the kernels read it once for several rows. They are
for frozen weights; `Modulation.by_kernels` and `kernels` choose between them and the plain formulas.

Shapes: B batch, f latent slots, S tokens per slot, N = f*S, D width, h heads, d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stateplay_rl.worlds.native import block_operators  # noqa: F401 - registers the operators
from stateplay_rl.worlds.native.block_formulas import Modulation, gated_sum, normed, rotated


def add(base_BfSD: Tensor, update_BfSD: Tensor, modulation: Modulation, gate: int) -> Tensor:
    """base + update * gate, [B, f, S, D]; `gate` is a row of the modulation."""
    if not modulation.by_kernels:
        return gated_sum(base_BfSD, update_BfSD, modulation.rows[gate])
    return _call(base_BfSD, update_BfSD, modulation, gate=gate, normed=False)[0]


def add_and_norm(
    base_BfSD: Tensor,
    update: Tensor | None,
    modulation: Modulation,
    epsilon: float,
    *,
    gate: int = -1,
    gate_1: Tensor | None = None,
    scale: int = -1,
    weight_D: Tensor | None = None,
    bias_D: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum base + update * gate, rounded, and its layer norm, both [B, f, S, D].

    Args:
        update: [B, f, S, D], or [B, f, D] for all tokens of a slot; None: nothing.
        gate: row of the modulation that multiplies the update; -1: none.
        gate_1: a single gate, instead.
        scale: row of the modulation that the norm is multiplied with, plus one; its shift is the row before. -1: none.
        weight_D, bias_D: the norm's own weights, instead.

    Raises:
        RuntimeError: the kernels are asked for the gradient of anything but `base` and an update of full size.
    """
    if modulation.by_kernels:
        if update is None:
            update = base_BfSD.new_zeros(*base_BfSD.shape[:2], base_BfSD.shape[3])
        return _call(base_BfSD, update, modulation, epsilon, gate, gate_1, scale, weight_D, bias_D, normed=True)
    hidden = base_BfSD
    if update is not None:
        hidden = gated_sum(base_BfSD, update, modulation.rows[gate] if gate >= 0 else gate_1)
    return hidden, normed(hidden, modulation, weight_D, bias_D, scale, epsilon)


def head_rows(
    x_BND: Tensor,
    weight_D: Tensor,
    epsilon: float,
    heads: int,
    rotary: tuple[Tensor, Tensor] | None = None,
    *,
    kernels: bool,
) -> Tensor:
    """x / rms(x) * w over the whole width, rounded, then rotated: [B, h, N, d], a token's heads side by side in memory.

    Rotation of interleaved pairs in float32: even' = even cos - odd sin, odd' = odd cos + even sin. The tables are
    [N, d]: every cosine twice, and every sine twice, the first time negative; as x cos + swapped(x) sin it is one pass.

    Args:
        rotary: the tables; None: no rotation.
        kernels: by the kernel, or by the plain formula.

    Raises:
        RuntimeError: the kernel is asked for the weight's gradient.
    """
    cos, sin = (None, None) if rotary is None else rotary
    function = torch.ops.stateplay_rl.head_rows if kernels else rotated
    out_BNhd: Tensor = function(x_BND, weight_D, cos, sin, epsilon, heads)
    return out_BNhd.transpose(1, 2)


def _call(
    base: Tensor,
    update: Tensor,
    modulation: Modulation,
    epsilon: float = 0.0,
    gate: int = -1,
    gate_1: Tensor | None = None,
    scale: int = -1,
    weight_D: Tensor | None = None,
    bias_D: Tensor | None = None,
    *,
    normed: bool,
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = torch.ops.stateplay_rl.residual_norm(
        base,
        update,
        modulation.table_16D,
        modulation.slots_Bf6D,
        gate_1,
        weight_D,
        bias_D,
        gate,
        scale,
        epsilon,
        normed,
    )
    return found
