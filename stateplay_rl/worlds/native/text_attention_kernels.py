"""Triton kernels of `text_attention`: a prompt's keys one after another, then the padding's one key, counted.

Softmax sums and products are float32; probabilities are rounded to the inputs' dtype before a product, as in flash
attention. Shapes: M queries and K keys of a block, D head width, L text tokens.
"""

# Triton has no types, and its kernels take pointers.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc, name-defined"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["queries", "tokens"])
def text_forward(
    q, k, v, lengths, out, lse, scale, queries, tokens, heads,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    D: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output rows [B, N, h*d] and base-2 log-sum-exp [B, h, N] of one block of queries."""
    head, batch = tl.program_id(1), tl.program_id(2)
    row, d = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, WIDE)
    inside = (row[:, None] < queries) & (d[None, :] < D)
    q_MD = tl.load(q + batch * q_batch + head * q_head + row[:, None] * q_row + d[None, :], mask=inside, other=0.0)
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    length = tl.load(lengths + batch)

    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sum_MD = tl.zeros([M, WIDE], tl.float32)
    for start in range(0, length, K):
        key = start + tl.arange(0, K)
        seen = (key[:, None] < length) & (d[None, :] < D)
        k_KD = tl.load(k + key[:, None] * k_row + d[None, :], mask=seen, other=0.0)
        v_KD = tl.load(v + key[:, None] * v_row + d[None, :], mask=seen, other=0.0)
        s_MK = tl.dot(q_MD, tl.trans(k_KD), input_precision=PRECISION) * scale
        s_MK = tl.where(key[None, :] < length, s_MK, float("-inf"))
        higher = tl.maximum(top, tl.max(s_MK, 1))
        p_MK = tl.exp2(s_MK - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(p_MK, 1)
        sum_MD = tl.dot(p_MK.to(v_KD.dtype), v_KD, sum_MD * fade[:, None], input_precision=PRECISION)
        top = higher

    if length < tokens:
        k_D = tl.load(k + (tokens - 1) * k_row + d, mask=d < D, other=0.0).to(tl.float32)
        v_D = tl.load(v + (tokens - 1) * v_row + d, mask=d < D, other=0.0).to(tl.float32)
        s_M = tl.sum(q_MD.to(tl.float32) * k_D[None, :], 1) * scale
        higher = tl.maximum(top, s_M)
        p_M = (tokens - length) * tl.exp2(s_M - higher)
        fade = tl.exp2(top - higher)
        total = total * fade + p_M
        sum_MD = sum_MD * fade[:, None] + p_M[:, None] * v_D[None, :]
        top = higher

    place = (batch * queries + row[:, None]) * heads * D + head * D + d[None, :]
    tl.store(out + place, (sum_MD / total[:, None]).to(out.dtype.element_ty), mask=inside)
    tl.store(lse + (batch * heads + head) * queries + row, top + tl.log2(total), mask=row < queries)


@triton.jit(do_not_specialize=["queries", "tokens"])
def text_backward(
    q, k, v, lengths, out, lse, d_out, d_q, scale, queries, tokens, heads,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    D: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of one block of queries, [B, N, h*d]; the softmax is computed again from its log-sum-exp."""
    head, batch = tl.program_id(1), tl.program_id(2)
    row, d = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, WIDE)
    inside = (row[:, None] < queries) & (d[None, :] < D)
    place = (batch * queries + row[:, None]) * heads * D + head * D + d[None, :]
    q_MD = tl.load(q + batch * q_batch + head * q_head + row[:, None] * q_row + d[None, :], mask=inside, other=0.0)
    d_out_MD = tl.load(d_out + place, mask=inside, other=0.0)
    out_MD = tl.load(out + place, mask=inside, other=0.0)
    mean_M = tl.sum(d_out_MD.to(tl.float32) * out_MD.to(tl.float32), 1)
    lse_M = tl.load(lse + (batch * heads + head) * queries + row, mask=row < queries, other=0.0)
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    length = tl.load(lengths + batch)

    d_q_MD = tl.zeros([M, WIDE], tl.float32)
    for start in range(0, length, K):
        key = start + tl.arange(0, K)
        seen = (key[:, None] < length) & (d[None, :] < D)
        k_KD = tl.load(k + key[:, None] * k_row + d[None, :], mask=seen, other=0.0)
        v_KD = tl.load(v + key[:, None] * v_row + d[None, :], mask=seen, other=0.0)
        s_MK = tl.dot(q_MD, tl.trans(k_KD), input_precision=PRECISION) * scale
        p_MK = tl.where(key[None, :] < length, tl.exp2(s_MK - lse_M[:, None]), 0.0)
        d_p_MK = tl.dot(d_out_MD, tl.trans(v_KD), input_precision=PRECISION)
        d_s_MK = p_MK * (d_p_MK - mean_M[:, None])
        d_q_MD = tl.dot(d_s_MK.to(k_KD.dtype), k_KD, d_q_MD, input_precision=PRECISION)

    if length < tokens:
        k_D = tl.load(k + (tokens - 1) * k_row + d, mask=d < D, other=0.0).to(tl.float32)
        v_D = tl.load(v + (tokens - 1) * v_row + d, mask=d < D, other=0.0).to(tl.float32)
        s_M = tl.sum(q_MD.to(tl.float32) * k_D[None, :], 1) * scale
        p_M = (tokens - length) * tl.exp2(s_M - lse_M)
        d_s_M = p_M * (tl.sum(d_out_MD.to(tl.float32) * v_D[None, :], 1) - mean_M)
        d_q_MD += d_s_M[:, None] * k_D[None, :]

    # `scale` holds log2(e) for the powers of two; the product itself has none.
    d_q_MD *= scale * 0.6931471805599453
    tl.store(d_q + place, d_q_MD.to(d_q.dtype.element_ty), mask=inside)
