"""Triton kernels of `block_passes`: one reading and one writing of every token, all sums in float32.

Shapes: S tokens of a slot, D width, H head width. A row of modulation is shared by the tokens of a slot.
"""

# Triton has no types, and its kernels take pointers.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc, name-defined"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _modulation(table, slots, slot, d, index: tl.constexpr, D: tl.constexpr):
    inside = d < D
    fixed_D = tl.load(table + index * D + d, mask=inside, other=0.0).to(tl.float32)
    return fixed_D + tl.load(slots + (slot * 6 + index) * D + d, mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["tokens"])
def residual_norm_forward(
    base, update, table, slots, gate_1, weight, bias, hidden, normed, tokens, epsilon,
    GATE: tl.constexpr, ONE_GATE: tl.constexpr, SCALE: tl.constexpr, AFFINE: tl.constexpr, PER_SLOT: tl.constexpr,
    NORM: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """hidden = base + update * gate; normed = layer_norm(hidden) * (1 + scale) + shift; some rows of one slot."""
    slot, d = tl.program_id(1).to(tl.int64), tl.arange(0, WIDE)
    first = tl.program_id(0) * ROWS
    if GATE >= 0:
        gate_D = _modulation(table, slots, slot, d, GATE, D)
    if ONE_GATE:
        gate_D = tl.load(gate_1).to(tl.float32)
    if SCALE >= 0:
        factor_D = 1.0 + _modulation(table, slots, slot, d, SCALE, D)
        shift_D = _modulation(table, slots, slot, d, SCALE - 1, D)
    if AFFINE:
        factor_D = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
        shift_D = tl.load(bias + d, mask=d < D, other=0.0).to(tl.float32)
    if PER_SLOT:
        update_D = tl.load(update + slot * D + d, mask=d < D, other=0.0).to(tl.float32)
    for row in range(first, tl.minimum(first + ROWS, tokens)):
        place = (slot * tokens + row) * D + d
        x_D = tl.load(base + place, mask=d < D, other=0.0).to(tl.float32)
        if not PER_SLOT:
            update_D = tl.load(update + place, mask=d < D, other=0.0).to(tl.float32)
        if GATE >= 0 or ONE_GATE:
            x_D += update_D * gate_D
        else:
            x_D += update_D
        rounded_D = x_D.to(hidden.dtype.element_ty)
        tl.store(hidden + place, rounded_D, mask=d < D)
        if NORM:
            x_D = rounded_D.to(tl.float32)
            centred_D = tl.where(d < D, x_D - tl.sum(x_D, 0) / D, 0.0)
            out_D = centred_D * tl.rsqrt(tl.sum(centred_D * centred_D, 0) / D + epsilon)
            if SCALE >= 0 or AFFINE:
                out_D = out_D * factor_D + shift_D
            tl.store(normed + place, out_D.to(normed.dtype.element_ty), mask=d < D)


@triton.jit(do_not_specialize=["tokens"])
def residual_norm_backward(
    d_hidden, d_normed, hidden, table, slots, gate_1, weight, d_base, d_update, tokens, epsilon,
    GATE: tl.constexpr, ONE_GATE: tl.constexpr, SCALE: tl.constexpr, AFFINE: tl.constexpr, NORM: tl.constexpr,
    TWO: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Gradients of `residual_norm_forward`; the norm is computed again from the sum."""
    slot, d = tl.program_id(1).to(tl.int64), tl.arange(0, WIDE)
    first = tl.program_id(0) * ROWS
    if GATE >= 0:
        gate_D = _modulation(table, slots, slot, d, GATE, D)
    if ONE_GATE:
        gate_D = tl.load(gate_1).to(tl.float32)
    if SCALE >= 0:
        factor_D = 1.0 + _modulation(table, slots, slot, d, SCALE, D)
    if AFFINE:
        factor_D = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    for row in range(first, tl.minimum(first + ROWS, tokens)):
        place = (slot * tokens + row) * D + d
        total_D = tl.load(d_hidden + place, mask=d < D, other=0.0).to(tl.float32)
        if NORM:
            x_D = tl.load(hidden + place, mask=d < D, other=0.0).to(tl.float32)
            g_D = tl.load(d_normed + place, mask=d < D, other=0.0).to(tl.float32)
            if SCALE >= 0 or AFFINE:
                g_D = g_D * factor_D
            centred_D = tl.where(d < D, x_D - tl.sum(x_D, 0) / D, 0.0)
            inverse = tl.rsqrt(tl.sum(centred_D * centred_D, 0) / D + epsilon)
            unit_D = centred_D * inverse
            share = tl.sum(g_D * unit_D, 0) / D
            total_D += (g_D - tl.sum(g_D, 0) / D - unit_D * share) * inverse
            tl.store(d_base + place, total_D.to(d_base.dtype.element_ty), mask=d < D)
        if TWO:
            tl.store(d_update + place, (total_D * gate_D).to(d_update.dtype.element_ty), mask=d < D)


@triton.jit
def _halves(x, WIDE: tl.constexpr):
    """Even and odd elements."""
    return tl.split(tl.reshape(x, [WIDE // 2, 2]))


@triton.jit
def _joined(even, odd, WIDE: tl.constexpr):
    return tl.reshape(tl.join(even, odd), [WIDE])


@triton.jit
def head_rows_forward(
    x, weight, cos, sin, out, epsilon,
    H: tl.constexpr, ROTARY: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """x / rms(x) * w, rounded; then every pair (even, odd) of a head turned by its token's angles."""
    token, d = tl.program_id(0), tl.arange(0, WIDE)
    place = (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + token) * D + d
    x_D = tl.load(x + place, mask=d < D, other=0.0).to(tl.float32)
    weight_D = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    normed_D = (x_D * tl.rsqrt(tl.sum(x_D * x_D, 0) / D + epsilon) * weight_D).to(out.dtype.element_ty)
    if ROTARY:
        cos_D, sin_D = tl.load(cos + token * H + d % H), tl.load(sin + token * H + d % H)
        even, odd = _halves(normed_D.to(tl.float32), WIDE)
        turned_D = normed_D.to(tl.float32) * cos_D + _joined(odd, even, WIDE) * sin_D
        normed_D = turned_D.to(out.dtype.element_ty)
    tl.store(out + place, normed_D, mask=d < D)


@triton.jit
def head_rows_backward(
    d_out, x, weight, cos, sin, dx, epsilon,
    H: tl.constexpr, ROTARY: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Gradient of `head_rows_forward`."""
    token, d = tl.program_id(0), tl.arange(0, WIDE)
    place = (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + token) * D + d
    x_D = tl.load(x + place, mask=d < D, other=0.0).to(tl.float32)
    weight_D = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    g_D = tl.load(d_out + place, mask=d < D, other=0.0).to(tl.float32)
    if ROTARY:
        cos_D, sin_D = tl.load(cos + token * H + d % H), tl.load(sin + token * H + d % H)
        # A pair's sines have opposite signs, so the transposed rotation takes the partner's.
        even, odd = _halves(g_D * sin_D, WIDE)
        g_D = g_D * cos_D + _joined(odd, even, WIDE)
    g_D *= weight_D
    inverse = tl.rsqrt(tl.sum(x_D * x_D, 0) / D + epsilon)
    unit_D = x_D * inverse
    dx_D = (g_D - unit_D * (tl.sum(g_D * unit_D, 0) / D)) * inverse
    tl.store(dx + place, dx_D.to(dx.dtype.element_ty), mask=d < D)
