"""Triton kernels of the decoder's memory-bound parts; `fused` and `few_queries` call them.

Each reads its inputs once and keeps nothing: the backward kernels compute the forward again. All sums are float32.
Shapes: R rows, D width, L tokens, C channels. Weights are frozen: they get no gradient.
"""

# Triton has no types, and its kernels take pointers.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc, name-defined"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_forward(x, weight, out, epsilon, D: tl.constexpr, WIDE: tl.constexpr):
    """x (1 + w) / rms(x), one row a program."""
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    x_D = tl.load(x + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    scale_D = 1.0 + tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x_D * x_D, 0) / D + epsilon)
    tl.store(out + row * D + d, (x_D * inverse * scale_D).to(out.dtype.element_ty), mask=d < D)


@triton.jit
def norm_backward(x, weight, d_out, dx, epsilon, D: tl.constexpr, WIDE: tl.constexpr):
    """Gradient of `norm_forward`."""
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    x_D = tl.load(x + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    scale_D = 1.0 + tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    g_D = tl.load(d_out + row * D + d, mask=d < D, other=0.0).to(tl.float32) * scale_D
    inverse = tl.rsqrt(tl.sum(x_D * x_D, 0) / D + epsilon)
    unit_D = x_D * inverse
    dx_D = (g_D - unit_D * (tl.sum(g_D * unit_D, 0) / D)) * inverse
    tl.store(dx + row * D + d, dx_D.to(dx.dtype.element_ty), mask=d < D)


@triton.jit(do_not_specialize=["rows"])
def gated_norm_forward(x, gate, weight, out, rows, epsilon, D: tl.constexpr, ROWS: tl.constexpr):
    """w x / rms(x) * silu(gate), some rows a program; D is a power of two."""
    row, d = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    place, inside = row[:, None] * D + d[None, :], row[:, None] < rows
    x_RD = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    gate_RD = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    inverse_R = tl.rsqrt(tl.sum(x_RD * x_RD, 1) / D + epsilon)
    normed_RD = x_RD * inverse_R[:, None] * tl.load(weight + d).to(tl.float32)[None, :]
    out_RD = normed_RD * gate_RD * tl.sigmoid(gate_RD)
    tl.store(out + place, out_RD.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def gated_norm_backward(x, gate, weight, d_out, dx, d_gate, rows, epsilon, D: tl.constexpr, ROWS: tl.constexpr):
    """Gradients of `gated_norm_forward`."""
    row, d = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    place, inside = row[:, None] * D + d[None, :], row[:, None] < rows
    x_RD = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    gate_RD = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    d_out_RD = tl.load(d_out + place, mask=inside, other=0.0).to(tl.float32)
    weight_1D = tl.load(weight + d).to(tl.float32)[None, :]
    inverse_R = tl.rsqrt(tl.sum(x_RD * x_RD, 1) / D + epsilon)
    unit_RD = x_RD * inverse_R[:, None]
    share_RD = tl.sigmoid(gate_RD)
    d_gate_RD = d_out_RD * unit_RD * weight_1D * share_RD * (1.0 + gate_RD * (1.0 - share_RD))
    tl.store(d_gate + place, d_gate_RD.to(d_gate.dtype.element_ty), mask=inside)
    g_RD = d_out_RD * gate_RD * share_RD * weight_1D
    dx_RD = (g_RD - unit_RD * (tl.sum(g_RD * unit_RD, 1) / D)[:, None]) * inverse_R[:, None]
    tl.store(dx + place, dx_RD.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def gated_forward(gate, up, out, count, BLOCK: tl.constexpr):
    """silu(gate) * up."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate_I = tl.load(gate + i, mask=i < count, other=0.0).to(tl.float32)
    up_I = tl.load(up + i, mask=i < count, other=0.0).to(tl.float32)
    tl.store(out + i, (gate_I * tl.sigmoid(gate_I) * up_I).to(out.dtype.element_ty), mask=i < count)


@triton.jit(do_not_specialize=["count"])
def gated_backward(gate, up, d_out, d_gate, d_up, count, BLOCK: tl.constexpr):
    """Gradients of `gated_forward`."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate_I = tl.load(gate + i, mask=i < count, other=0.0).to(tl.float32)
    up_I = tl.load(up + i, mask=i < count, other=0.0).to(tl.float32)
    d_out_I = tl.load(d_out + i, mask=i < count, other=0.0).to(tl.float32)
    share_I = tl.sigmoid(gate_I)
    d_gate_I = d_out_I * up_I * share_I * (1.0 + gate_I * (1.0 - share_I))
    tl.store(d_gate + i, d_gate_I.to(d_gate.dtype.element_ty), mask=i < count)
    tl.store(d_up + i, (d_out_I * gate_I * share_I).to(d_up.dtype.element_ty), mask=i < count)


@triton.jit
def _mixed(x, weight, token, channel, length, channels, TAPS: tl.constexpr):
    """Sum over taps w_j x[t - TAPS + 1 + j] of some tokens and channels, before the activation."""
    total = tl.zeros([token.shape[0], channel.shape[0]], tl.float32)
    for tap in tl.static_range(TAPS):
        source = token - (TAPS - 1) + tap
        seen = (source[:, None] >= 0) & (source[:, None] < length) & (channel[None, :] < channels)
        x_LC = tl.load(x + source[:, None] * channels + channel[None, :], mask=seen, other=0.0).to(tl.float32)
        weight_C = tl.load(weight + channel * TAPS + tap, mask=channel < channels, other=0.0).to(tl.float32)
        total += x_LC * weight_C[None, :]
    return total


@triton.jit(do_not_specialize=["length"])
def convolution_forward(x, weight, out, length, channels, TAPS: tl.constexpr, TOKENS: tl.constexpr, WIDE: tl.constexpr):
    """silu of a causal convolution of every channel with its own taps; x and out [B, L, C], dense."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS).to(tl.int64)
    channel = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    start = tl.program_id(2).to(tl.int64) * length * channels
    mixed = _mixed(x + start, weight, token, channel, length, channels, TAPS)
    inside = (token[:, None] < length) & (channel[None, :] < channels)
    place = start + token[:, None] * channels + channel[None, :]
    tl.store(out + place, (mixed * tl.sigmoid(mixed)).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["length"])
def convolution_backward(
    x, weight, d_out, dx, length, channels, TAPS: tl.constexpr, TOKENS: tl.constexpr, WIDE: tl.constexpr
):
    """Gradient of `convolution_forward`: a token is read by itself and by the TAPS - 1 after it."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS).to(tl.int64)
    channel = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    start = tl.program_id(2).to(tl.int64) * length * channels
    total = tl.zeros([TOKENS, WIDE], tl.float32)
    for later in tl.static_range(TAPS):
        reader = token + later
        mixed = _mixed(x + start, weight, reader, channel, length, channels, TAPS)
        share = tl.sigmoid(mixed)
        inside = (reader[:, None] < length) & (channel[None, :] < channels)
        place = start + reader[:, None] * channels + channel[None, :]
        d_out_LC = tl.load(d_out + place, mask=inside, other=0.0).to(tl.float32)
        tap = TAPS - 1 - later
        weight_C = tl.load(weight + channel * TAPS + tap, mask=channel < channels, other=0.0).to(tl.float32)
        total += d_out_LC * share * (1.0 + mixed * (1.0 - share)) * weight_C[None, :]
    inside = (token[:, None] < length) & (channel[None, :] < channels)
    place = start + token[:, None] * channels + channel[None, :]
    tl.store(dx + place, total.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["patches"])
def rotate(x, cosine, sine, patches, stride, heads, HALF: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr):
    """Rotary positions of queries and keys in place: x [rows, 3 * heads * 2 * HALF], a row of the tables a patch."""
    row, h, d = tl.program_id(0).to(tl.int64), tl.arange(0, HEADS), tl.arange(0, WIDE)
    inside = (h[:, None] < heads) & (d[None, :] < HALF)
    table = (row % patches) * 2 * HALF + d
    start = row * stride + tl.program_id(1) * heads * 2 * HALF
    place = x + start + h[:, None] * 2 * HALF + d[None, :]
    first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=inside, other=0.0).to(tl.float32)
    c, s = tl.load(cosine + table, mask=d < HALF, other=0.0), tl.load(sine + table, mask=d < HALF, other=0.0)
    c2 = tl.load(cosine + table + HALF, mask=d < HALF, other=0.0)
    s2 = tl.load(sine + table + HALF, mask=d < HALF, other=0.0)
    tl.store(place, (first * c[None, :] - second * s[None, :]).to(x.dtype.element_ty), mask=inside)
    tl.store(place + HALF, (second * c2[None, :] + first * s2[None, :]).to(x.dtype.element_ty), mask=inside)


@triton.jit
def few_queries_part(
    query, keys, values, filled, part, largest, weight, room, scale,
    S: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of the last S filled places to one part of all of them, for the query heads of one key head.

    Stores the weighted sum of values, not yet divided, the largest score and the sum of weights of every row.
    """
    n, key_head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    length = tl.load(filled).to(tl.int32)
    size = tl.cdiv(length, PARTS)
    first = n * size
    last = tl.minimum(first + size, length)
    row, d = tl.arange(0, ROWS), tl.arange(0, D)
    head, s = key_head * GROUP + row // S, row % S
    inside = row < GROUP * S
    place_R = head * S + s
    query_RD = tl.load(query + place_R[:, None] * D + d[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    sum_RD = tl.zeros([ROWS, D], tl.float32)
    # Finite: a row that sees nothing of this part must not become 0 / 0 here.
    largest_R = tl.full([ROWS], -1e30, tl.float32)
    weight_R = tl.zeros([ROWS], tl.float32)
    for start in range(first, last, BLOCK):
        key = start + tl.arange(0, BLOCK)
        rows = key_head * room * D + key[:, None].to(tl.int64) * D + d[None, :]
        key_BD = tl.load(keys + rows, mask=(key < last)[:, None], other=0.0).to(tl.float32)
        score_RB = tl.dot(query_RD, tl.trans(key_BD), input_precision=PRECISION) * scale
        seen = (key < last)[None, :] & (key[None, :] <= length - S + s[:, None])
        score_RB = tl.where(seen, score_RB, -1e30)
        above_R = tl.maximum(largest_R, tl.max(score_RB, 1))
        shrink_R = tl.exp(largest_R - above_R)
        weight_RB = tl.where(seen, tl.exp(score_RB - above_R[:, None]), 0.0)
        weight_R = weight_R * shrink_R + tl.sum(weight_RB, 1)
        value_BD = tl.load(values + rows, mask=(key < last)[:, None], other=0.0).to(tl.float32)
        sum_RD = sum_RD * shrink_R[:, None] + tl.dot(weight_RB, value_BD, input_precision=PRECISION)
        largest_R = above_R
    target = n * tl.num_programs(1) * GROUP * S + place_R
    tl.store(part + target[:, None] * D + d[None, :], sum_RD, mask=inside[:, None])
    tl.store(largest + target, largest_R, mask=inside)
    tl.store(weight + target, weight_R, mask=inside)


@triton.jit
def few_queries_join(part, largest, weight, out, rows, D: tl.constexpr, PARTS: tl.constexpr):
    """The parts of one row [PARTS, rows, D] put together."""
    row, n, d = tl.program_id(0), tl.arange(0, PARTS), tl.arange(0, D)
    largest_P = tl.load(largest + n * rows + row)
    share_P = tl.exp(largest_P - tl.max(largest_P, 0))
    total = tl.sum(share_P * tl.load(weight + n * rows + row), 0)
    part_PD = tl.load(part + (n * rows + row)[:, None] * D + d[None, :])
    out_D = tl.sum(part_PD * share_P[:, None], 0) / total
    tl.store(out + row * D + d, out_D.to(out.dtype.element_ty))
