"""A block's passes as operators with a backward: Triton on a GPU, the plain formulas on a CPU.

For frozen weights: gradients exist for hidden states and updates alone. Shapes: B batch, f latent slots, S tokens per
slot, N = f*S, D width, h heads, d head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stateplay_rl.triton_launch import LEAST_WIDTH, power_of_two
from stateplay_rl.worlds.native import block_formulas as formulas
from stateplay_rl.worlds.native.block_formulas import Modulation

_ROWS, _ROWS_WARPS = 5, 4
"""Tokens of one slot that a program takes, for one reading of the slot's modulation, and its warps."""
_HEAD_WARPS = 8


# -- residual sum and norm --------------------------------------------------------------------------------------


@torch.library.custom_op("stateplay_rl::residual_norm", mutates_args=(), device_types="cpu")
def _residual_norm(
    base: Tensor,
    update: Tensor,
    table_16D: Tensor,
    slots_Bf6D: Tensor,
    gate_1: Tensor | None,
    weight_D: Tensor | None,
    bias_D: Tensor | None,
    gate: int,
    scale: int,
    epsilon: float,
    normed: bool,
) -> tuple[Tensor, Tensor]:
    modulation = Modulation.of(table_16D, slots_Bf6D, kernels=False)
    hidden = formulas.gated_sum(base, update, modulation.rows[gate] if gate >= 0 else gate_1)
    if not normed:
        return hidden, base.new_empty(0)
    return hidden, formulas.normed(hidden, modulation, weight_D, bias_D, scale, epsilon)


@_residual_norm.register_kernel("cuda")
def launch_residual_norm(
    base: Tensor,
    update: Tensor,
    table_16D: Tensor,
    slots_Bf6D: Tensor,
    gate_1: Tensor | None,
    weight_D: Tensor | None,
    bias_D: Tensor | None,
    gate: int,
    scale: int,
    epsilon: float,
    normed: bool,
) -> tuple[Tensor, Tensor]:
    """The forward kernel: hidden, and normed or nothing."""
    from stateplay_rl.worlds.native import block_kernels as kernels

    base, update = base.contiguous(), update.contiguous()
    hidden = torch.empty_like(base)
    out = torch.empty_like(base) if normed else base.new_empty(0)
    kernels.residual_norm_forward[_grid(base)](
        base,
        update,
        table_16D.contiguous(),
        slots_Bf6D.contiguous(),
        gate_1,
        weight_D,
        bias_D,
        hidden,
        out,
        base.shape[2],
        epsilon,
        GATE=gate,
        ONE_GATE=gate_1 is not None,
        SCALE=scale,
        AFFINE=weight_D is not None,
        PER_SLOT=update.dim() == 3,
        NORM=normed,
        ROWS=_ROWS,
        **_constants(base, _ROWS_WARPS),
    )
    return hidden, out


@_residual_norm.register_fake
def _(base: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    like = base.new_empty(base.shape)
    return like, base.new_empty(base.shape) if arguments[-1] else base.new_empty(0)


@torch.library.custom_op("stateplay_rl::residual_norm_backward", mutates_args=(), device_types="cpu")
def _residual_norm_backward(
    d_hidden: Tensor,
    d_normed: Tensor,
    hidden: Tensor,
    table_16D: Tensor,
    slots_Bf6D: Tensor,
    gate_1: Tensor | None,
    weight_D: Tensor | None,
    gate: int,
    scale: int,
    epsilon: float,
    normed: bool,
    two: bool,
) -> tuple[Tensor, Tensor]:
    total, rows = d_hidden.float(), Modulation.of(table_16D, slots_Bf6D, kernels=False).rows
    if normed:
        g = d_normed.float()
        if weight_D is not None:
            g = g * weight_D.float()
        if scale >= 0:
            g = g * (1 + rows[scale])
        x = hidden.float()
        inverse = (x.var(-1, correction=0, keepdim=True) + epsilon).rsqrt()
        unit = (x - x.mean(-1, keepdim=True)) * inverse
        total = total + (g - g.mean(-1, keepdim=True) - unit * (g * unit).mean(-1, keepdim=True)) * inverse
    d_base = total.to(hidden.dtype) if normed else hidden.new_empty(0)
    if not two:
        return d_base, hidden.new_empty(0)
    factor = rows[gate] if gate >= 0 else gate_1
    assert factor is not None, "two gradients differ by a gate"
    return d_base, (total * factor.float()).to(hidden.dtype)


@_residual_norm_backward.register_kernel("cuda")
def launch_residual_norm_backward(
    d_hidden: Tensor,
    d_normed: Tensor,
    hidden: Tensor,
    table_16D: Tensor,
    slots_Bf6D: Tensor,
    gate_1: Tensor | None,
    weight_D: Tensor | None,
    gate: int,
    scale: int,
    epsilon: float,
    normed: bool,
    two: bool,
) -> tuple[Tensor, Tensor]:
    """The backward kernel: gradient of base (none without a norm: it is that of the sum), and of a gated update."""
    from stateplay_rl.worlds.native import block_kernels as kernels

    d_hidden, d_normed = d_hidden.contiguous(), d_normed.contiguous()
    d_base = torch.empty_like(d_hidden) if normed else d_hidden.new_empty(0)
    d_update = torch.empty_like(d_hidden) if two else d_hidden.new_empty(0)
    kernels.residual_norm_backward[_grid(d_hidden)](
        d_hidden,
        d_normed,
        hidden,
        table_16D.contiguous(),
        slots_Bf6D.contiguous(),
        gate_1,
        weight_D,
        d_base,
        d_update,
        d_hidden.shape[2],
        epsilon,
        GATE=gate,
        ONE_GATE=gate_1 is not None,
        SCALE=scale,
        AFFINE=weight_D is not None,
        NORM=normed,
        TWO=two,
        ROWS=_ROWS,
        **_constants(d_hidden, _ROWS_WARPS),
    )
    return d_base, d_update


@_residual_norm_backward.register_fake
def _(d_hidden: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    normed, two = arguments[-2:]
    base, update = (d_hidden.new_empty(d_hidden.shape if wanted else 0) for wanted in (normed, two))
    return base, update


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, update, table_16D, slots_Bf6D, gate_1, weight_D, _, ctx.gate, ctx.scale, ctx.epsilon, ctx.normed = inputs
    refuse_other_gradients(ctx.needs_input_grad, allowed=2 if update.dim() == 4 else 1, name="residual_norm")
    # Without a norm nothing of the hidden state is needed.
    ctx.save_for_backward(output[0] if ctx.normed else None, table_16D, slots_Bf6D, gate_1, weight_D)
    ctx.gated = update.dim() == 4 and (ctx.gate >= 0 or gate_1 is not None)
    ctx.per_slot = update.dim() == 3


def _norm_gradient(ctx: Any, d_hidden: Tensor, d_normed: Tensor) -> tuple[Tensor | None, ...]:
    hidden, table_16D, slots_Bf6D, gate_1, weight_D = ctx.saved_tensors
    if not (ctx.normed or ctx.gated):
        return d_hidden, None if ctx.per_slot else d_hidden, *[None] * 9
    d_base, d_update = torch.ops.stateplay_rl.residual_norm_backward(
        d_hidden,
        d_normed,
        d_hidden if hidden is None else hidden,
        table_16D,
        slots_Bf6D,
        gate_1,
        weight_D,
        ctx.gate,
        ctx.scale,
        ctx.epsilon,
        ctx.normed,
        ctx.gated,
    )
    d_base = d_base if ctx.normed else d_hidden
    other = None if ctx.per_slot else (d_update if ctx.gated else d_base)
    return d_base, other, *[None] * 9


_residual_norm.register_autograd(_norm_gradient, setup_context=_save_norm)


# -- norm of a head's rows --------------------------------------------------------------------------------------


@torch.library.custom_op("stateplay_rl::head_rows", mutates_args=(), device_types="cpu")
def _head_rows(
    x_BND: Tensor, weight_D: Tensor, cos_Nd: Tensor | None, sin_Nd: Tensor | None, epsilon: float, heads: int
) -> Tensor:
    return formulas.rotated(x_BND, weight_D, cos_Nd, sin_Nd, epsilon, heads).clone()


@_head_rows.register_kernel("cuda")
def launch_head_rows(
    x_BND: Tensor, weight_D: Tensor, cos_Nd: Tensor | None, sin_Nd: Tensor | None, epsilon: float, heads: int
) -> Tensor:
    """The forward kernel, [B, N, h, d]."""
    from stateplay_rl.worlds.native import block_kernels as kernels

    x_BND = x_BND.contiguous()
    batch, tokens, width = x_BND.shape
    out = x_BND.new_empty(batch, tokens, heads, width // heads)
    kernels.head_rows_forward[(tokens, batch)](
        x_BND,
        weight_D,
        cos_Nd,
        sin_Nd,
        out,
        epsilon,
        H=width // heads,
        ROTARY=cos_Nd is not None,
        **_constants(x_BND, _HEAD_WARPS),
    )
    return out


@_head_rows.register_fake
def _(x_BND: Tensor, *arguments: Any) -> Tensor:
    batch, tokens, width = x_BND.shape
    return x_BND.new_empty(batch, tokens, arguments[-1], width // arguments[-1])


@torch.library.custom_op("stateplay_rl::head_rows_backward", mutates_args=(), device_types="cpu")
def _head_rows_backward(
    d_out_BNhd: Tensor, x_BND: Tensor, weight_D: Tensor, cos_Nd: Tensor | None, sin_Nd: Tensor | None, epsilon: float
) -> Tensor:
    g_BNhd = d_out_BNhd.float()
    if cos_Nd is not None and sin_Nd is not None:
        # A pair's sines have opposite signs, so the transposed rotation takes the partner's.
        g_BNhd = g_BNhd * cos_Nd.unsqueeze(1) + formulas.swapped(g_BNhd * sin_Nd.unsqueeze(1))
    g, x = g_BNhd.flatten(2) * weight_D.float(), x_BND.float()
    inverse = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    unit = x * inverse
    return ((g - unit * (g * unit).mean(-1, keepdim=True)) * inverse).to(x_BND.dtype)


@_head_rows_backward.register_kernel("cuda")
def launch_head_rows_backward(
    d_out_BNhd: Tensor, x_BND: Tensor, weight_D: Tensor, cos_Nd: Tensor | None, sin_Nd: Tensor | None, epsilon: float
) -> Tensor:
    """The backward kernel, [B, N, D]."""
    from stateplay_rl.worlds.native import block_kernels as kernels

    x_BND, d_out_BNhd = x_BND.contiguous(), d_out_BNhd.contiguous()
    batch, tokens, _ = x_BND.shape
    dx = torch.empty_like(x_BND)
    width = d_out_BNhd.shape[3]
    kernels.head_rows_backward[(tokens, batch)](
        d_out_BNhd,
        x_BND,
        weight_D,
        cos_Nd,
        sin_Nd,
        dx,
        epsilon,
        H=width,
        ROTARY=cos_Nd is not None,
        **_constants(x_BND, _HEAD_WARPS),
    )
    return dx


@_head_rows_backward.register_fake
def _(_: Tensor, x_BND: Tensor, *arguments: Any) -> Tensor:
    return x_BND.new_empty(x_BND.shape)


def _save_rows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x_BND, weight_D, cos_Nd, sin_Nd, ctx.epsilon, _ = inputs
    refuse_other_gradients(ctx.needs_input_grad, allowed=1, name="head_rows")
    ctx.save_for_backward(x_BND, weight_D, cos_Nd, sin_Nd)


def _rows_gradient(ctx: Any, d_out_BNhd: Tensor) -> tuple[Tensor | None, ...]:
    dx = torch.ops.stateplay_rl.head_rows_backward(d_out_BNhd, *ctx.saved_tensors, ctx.epsilon)
    return dx, *[None] * 5


_head_rows.register_autograd(_rows_gradient, setup_context=_save_rows)


def refuse_other_gradients(wanted: tuple[bool, ...], allowed: int, name: str) -> None:
    """Raise unless gradients are wanted of the first `allowed` inputs alone.

    Raises:
        RuntimeError: a weight wants one.
    """
    if any(wanted[allowed:]):
        raise RuntimeError(f"{name} has no gradient for weights: use the plain path where they are trained")


def _grid(x_BfSD: Tensor) -> tuple[int, int]:
    batch, slots, tokens, _ = x_BfSD.shape
    return -(-tokens // _ROWS), batch * slots


def _constants(x: Tensor, warps: int) -> dict[str, int]:
    return {"D": x.shape[-1], "WIDE": power_of_two(x.shape[-1], LEAST_WIDTH), "num_warps": warps}
