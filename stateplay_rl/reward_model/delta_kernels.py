"""Triton kernels of the chunked gated delta rule, forward and backward; `delta_triton` calls them in order.

Algebra of one chunk and head, as in `delta_rule` (arXiv 2412.06464, section 3), with c the cumulative log decay,
E_ij = exp(c_i - c_j) for i >= j, and S the state before the chunk:

    T = (1 + N)^-1, N_ij = b_i (k_i . k_j) E_ij below the diagonal
    U = T (b v), W = T (b exp(c) k), X = U - W S            what is written
    O = (exp(c) q) S + A X, A_ij = (q_i . k_j) E_ij         what is read
    S' = exp(c_last) S + (exp(c_last - c) k)^T X

Queries and keys are unit vectors here, queries scaled by 1/sqrt(K). Sums and everything kept between kernels are
float32. Shapes as in `delta_rule`: N chunks, C tokens a chunk, M = B * H; keys may have fewer heads than values.
"""

# Triton has no types, and its kernels take pointers.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc, name-defined"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["length", "chunks"])
def unit_rows(
    x, out, length, stride_b, stride_t, heads, chunks, scale,
    K: tl.constexpr, C: tl.constexpr, NORMALISE: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """[B, L, heads, K] -> float32 [B * heads, N * C, K]: unit length, times `scale`; zeros behind the end."""
    n, m = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token, k = n * C + tl.arange(0, C), tl.arange(0, K)
    source = x + (m // heads) * stride_b + token[:, None] * stride_t + (m % heads) * K + k[None, :]
    x_CK = tl.load(source, mask=token[:, None] < length, other=0.0).to(tl.float32)
    if NORMALISE:
        x_CK = x_CK * tl.rsqrt(tl.sum(x_CK * x_CK, 1) + EPSILON)[:, None]
    tl.store(out + (m * chunks * C + token[:, None]) * K + k[None, :], x_CK * scale)


@triton.jit(do_not_specialize=["length", "chunks"])
def systems(
    key, g, beta, t, cumulative, length, heads, key_heads, chunks,
    K: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """-N of a chunk (zero from the diagonal up) and its cumulative decay."""
    n, m = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = m // heads, m % heads
    key_row = (batch * key_heads + head // (heads // key_heads)) * chunks + n
    i, k = tl.arange(0, C), tl.arange(0, K)
    token = n * C + i
    gate, inside = (batch * length + token) * heads + head, token < length
    c_C = tl.cumsum(tl.load(g + gate, mask=inside, other=0.0), 0)
    b_C = tl.load(beta + gate, mask=inside, other=0.0).to(tl.float32)
    key_CK = tl.load(key + key_row * C * K + i[:, None] * K + k[None, :])
    below = i[:, None] > i[None, :]
    # Masked before exp: above the diagonal it would overflow.
    decay_CC = tl.exp(tl.where(below, c_C[:, None] - c_C[None, :], 0.0))
    product_CC = tl.dot(key_CK, tl.trans(key_CK), input_precision=PRECISION)
    chunk = m * chunks + n
    tl.store(cumulative + chunk * C + i, c_C)
    place = t + chunk * C * C + i[:, None] * C + i[None, :]
    tl.store(place, tl.where(below, -b_C[:, None] * product_CC * decay_CC, 0.0))


@triton.jit
def invert(t, C: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr):
    """T = (1 + N)^-1 in place of -N, in blocks of 16: those on the diagonal by forward substitution, then the rest.

    Below the diagonal T_ab = T_aa sum over b <= c < a of (-N)_ac T_cb: columns of blocks from left to right, each
    downwards. Finished blocks are written and read again, by the same program.
    """
    base = t + tl.program_id(0).to(tl.int64) * C * C
    i, part = tl.arange(0, 16), tl.arange(0, PARTS)
    corner = base + part[:, None, None] * 16 * (C + 1) + i[None, :, None] * C + i[None, None, :]
    x_P16 = tl.load(corner)
    for row in range(1, 16):
        row_P1 = tl.sum(tl.where(i[None, :, None] == row, x_P16, 0.0), 1)
        # Rows above are done; those below meet zeros of this row.
        row_P1 += tl.sum(row_P1[:, :, None] * x_P16, 1)
        x_P16 = tl.where(i[None, :, None] == row, row_P1[:, None, :], x_P16)
    x_P16 = tl.where(i[None, :, None] == i[None, None, :], 1.0, x_P16)
    tl.store(corner, x_P16)
    tl.debug_barrier()
    block = i[:, None] * C + i[None, :]
    for column in tl.static_range(PARTS - 1):
        for down in tl.static_range(column + 1, PARTS):
            total = tl.zeros([16, 16], tl.float32)
            for across in tl.static_range(column, down):
                left = tl.load(base + down * 16 * C + across * 16 + block)
                right = tl.load(base + across * 16 * C + column * 16 + block)
                total += tl.dot(left, right, input_precision=PRECISION)
            corner_16 = tl.load(base + down * 16 * (C + 1) + block)
            total = tl.dot(corner_16, total, input_precision=PRECISION)
            tl.debug_barrier()
            tl.store(base + down * 16 * C + column * 16 + block, total)
            tl.debug_barrier()


@triton.jit(do_not_specialize=["length", "chunks"])
def solved(
    key, v, beta, t, cumulative, u, w, length, stride_b, stride_t, heads, key_heads, chunks,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """U and W of a chunk."""
    n, m = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head, chunk = m // heads, m % heads, m * chunks + n
    key_row = (batch * key_heads + head // (heads // key_heads)) * chunks + n
    i, k, j = tl.arange(0, C), tl.arange(0, K), tl.arange(0, V)
    token = n * C + i
    inside = token < length
    b_C = tl.load(beta + (batch * length + token) * heads + head, mask=inside, other=0.0).to(tl.float32)
    t_CC = tl.load(t + chunk * C * C + i[:, None] * C + i[None, :])
    write_C = b_C * tl.exp(tl.load(cumulative + chunk * C + i))
    key_CK = tl.load(key + key_row * C * K + i[:, None] * K + k[None, :])
    w_CK = tl.dot(t_CC, key_CK * write_C[:, None], input_precision=PRECISION)
    tl.store(w + chunk * C * K + i[:, None] * K + k[None, :], w_CK)
    value = v + batch * stride_b + token[:, None] * stride_t + head * V + j[None, :]
    v_CV = tl.load(value, mask=inside[:, None], other=0.0).to(tl.float32)
    u_CV = tl.dot(t_CC, v_CV * b_C[:, None], input_precision=PRECISION)
    tl.store(u + chunk * C * V + i[:, None] * V + j[None, :], u_CV)


@triton.jit(do_not_specialize=["length", "chunks"])
def states_forward(
    key, u, w, cumulative, start, states, written, end, heads, key_heads, chunks,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The recurrence over chunks for a block of value columns: S before each chunk, X, and the last S."""
    m = tl.program_id(1).to(tl.int64)
    key_row = (m // heads) * key_heads + (m % heads) // (heads // key_heads)
    i, k, j = tl.arange(0, C), tl.arange(0, K), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    state_KV = tl.load(start + m * K * V + k[:, None] * V + j[None, :])
    for n in range(chunks):
        chunk = m * chunks + n
        tl.store(states + chunk * K * V + k[:, None] * V + j[None, :], state_KV)
        w_CK = tl.load(w + chunk * C * K + i[:, None] * K + k[None, :])
        u_CV = tl.load(u + chunk * C * V + i[:, None] * V + j[None, :])
        x_CV = u_CV - tl.dot(w_CK, state_KV, input_precision=PRECISION)
        tl.store(written + chunk * C * V + i[:, None] * V + j[None, :], x_CV)
        c_C, last = tl.load(cumulative + chunk * C + i), tl.load(cumulative + chunk * C + C - 1)
        key_KC = tl.load(key + (key_row * chunks + n) * C * K + k[:, None] + i[None, :] * K)
        key_KC = key_KC * tl.exp(last - c_C)[None, :]
        state_KV = state_KV * tl.exp(last) + tl.dot(key_KC, x_CV, input_precision=PRECISION)
    tl.store(end + m * K * V + k[:, None] * V + j[None, :], state_KV)


@triton.jit(do_not_specialize=["length", "chunks"])
def outputs(
    query, key, cumulative, states, written, out, length, stride_b, stride_t, heads, key_heads, chunks,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """O of a chunk, for a block of value columns."""
    n, m = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = m // heads, m % heads
    key_row = (batch * key_heads + head // (heads // key_heads)) * chunks + n
    chunk = m * chunks + n
    i, k, j = tl.arange(0, C), tl.arange(0, K), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    token = n * C + i
    c_C = tl.load(cumulative + chunk * C + i)
    query_CK = tl.load(query + key_row * C * K + i[:, None] * K + k[None, :])
    key_KC = tl.load(key + key_row * C * K + k[:, None] + i[None, :] * K)
    until = i[:, None] >= i[None, :]
    decay_CC = tl.exp(tl.where(until, c_C[:, None] - c_C[None, :], 0.0))
    a_CC = tl.where(until, tl.dot(query_CK, key_KC, input_precision=PRECISION) * decay_CC, 0.0)
    x_CV = tl.load(written + chunk * C * V + i[:, None] * V + j[None, :])
    o_CV = tl.dot(a_CC, x_CV, input_precision=PRECISION)
    state_KV = tl.load(states + chunk * K * V + k[:, None] * V + j[None, :])
    o_CV += tl.dot(query_CK * tl.exp(c_C)[:, None], state_KV, input_precision=PRECISION)
    target = out + batch * stride_b + token[:, None] * stride_t + head * V + j[None, :]
    tl.store(target, o_CV.to(out.dtype.element_ty), mask=token[:, None] < length)


@triton.jit(do_not_specialize=["length", "chunks"])
def written_backward(
    query, key, cumulative, d_out, d_written, length, stride_b, stride_t, heads, key_heads, chunks,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A^T dO: what the chunk's own outputs ask of X."""
    n, m = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = m // heads, m % heads
    key_row = (batch * key_heads + head // (heads // key_heads)) * chunks + n
    chunk = m * chunks + n
    i, k, j = tl.arange(0, C), tl.arange(0, K), tl.arange(0, V)
    token = n * C + i
    c_C = tl.load(cumulative + chunk * C + i)
    key_CK = tl.load(key + key_row * C * K + i[:, None] * K + k[None, :])
    query_KC = tl.load(query + key_row * C * K + k[:, None] + i[None, :] * K)
    since = i[:, None] <= i[None, :]
    decay_CC = tl.exp(tl.where(since, c_C[None, :] - c_C[:, None], 0.0))
    a_CC = tl.where(since, tl.dot(key_CK, query_KC, input_precision=PRECISION) * decay_CC, 0.0)
    source = d_out + batch * stride_b + token[:, None] * stride_t + head * V + j[None, :]
    d_out_CV = tl.load(source, mask=token[:, None] < length, other=0.0).to(tl.float32)
    d_written_CV = tl.dot(a_CC, d_out_CV, input_precision=PRECISION)
    tl.store(d_written + chunk * C * V + i[:, None] * V + j[None, :], d_written_CV)


@triton.jit(do_not_specialize=["length", "chunks"])
def states_backward(
    query, key, w, cumulative, d_out, d_end, d_states, d_written, d_start,
    length, stride_b, stride_t, heads, key_heads, chunks,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The recurrence backwards: dS behind each chunk, dX (added to what is there), and dS before the first."""
    m = tl.program_id(1).to(tl.int64)
    batch, head = m // heads, m % heads
    key_row = batch * key_heads + head // (heads // key_heads)
    i, k, j = tl.arange(0, C), tl.arange(0, K), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d_state_KV = tl.load(d_end + m * K * V + k[:, None] * V + j[None, :])
    for step in range(chunks):
        n = chunks - 1 - step
        chunk, rows = m * chunks + n, (key_row * chunks + n) * C * K
        tl.store(d_states + chunk * K * V + k[:, None] * V + j[None, :], d_state_KV)
        c_C, last = tl.load(cumulative + chunk * C + i), tl.load(cumulative + chunk * C + C - 1)
        key_CK = tl.load(key + rows + i[:, None] * K + k[None, :]) * tl.exp(last - c_C)[:, None]
        place = chunk * C * V + i[:, None] * V + j[None, :]
        dx_CV = tl.load(d_written + place) + tl.dot(key_CK, d_state_KV, input_precision=PRECISION)
        tl.store(d_written + place, dx_CV)
        token = n * C + i
        source = d_out + batch * stride_b + token[:, None] * stride_t + head * V + j[None, :]
        d_out_CV = tl.load(source, mask=token[:, None] < length, other=0.0).to(tl.float32)
        query_KC = tl.load(query + rows + k[:, None] + i[None, :] * K) * tl.exp(c_C)[None, :]
        w_KC = tl.load(w + chunk * C * K + k[:, None] + i[None, :] * K)
        d_state_KV = d_state_KV * tl.exp(last) + tl.dot(query_KC, d_out_CV, input_precision=PRECISION)
        d_state_KV -= tl.dot(w_KC, dx_CV, input_precision=PRECISION)
    tl.store(d_start + m * K * V + k[:, None] * V + j[None, :], d_state_KV)


@triton.jit(do_not_specialize=["length", "chunks"])
def values_backward(
    v, beta, u, t, written, d_out, d_written, d_v, d_beta, d_a, d_n,
    length, v_stride_b, v_stride_t, o_stride_b, o_stride_t, d_stride_b, heads, chunks,
    V: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What runs over value columns: gradients of v, of A, and the parts of b and N that come through U."""
    n, m = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = m // heads, m % heads
    chunk = m * chunks + n
    i = tl.arange(0, C)
    token = n * C + i
    inside = token < length
    b_C = tl.load(beta + (batch * length + token) * heads + head, mask=inside, other=0.0).to(tl.float32)
    t_transposed_CC = tl.load(t + chunk * C * C + i[:, None] + i[None, :] * C)
    da_CC = tl.zeros([C, C], tl.float32)
    dn_CC = tl.zeros([C, C], tl.float32)
    db_C = tl.zeros([C], tl.float32)
    for first in range(0, V, BLOCK):
        j = first + tl.arange(0, BLOCK)
        place = chunk * C * V + i[:, None] * V + j[None, :]
        source = d_out + batch * o_stride_b + token[:, None] * o_stride_t + head * V + j[None, :]
        do_CV = tl.load(source, mask=inside[:, None], other=0.0).to(tl.float32)
        da_CC += tl.dot(do_CV, tl.trans(tl.load(written + place)), input_precision=PRECISION)
        dbv_CV = tl.dot(t_transposed_CC, tl.load(d_written + place), input_precision=PRECISION)
        dn_CC -= tl.dot(dbv_CV, tl.trans(tl.load(u + place)), input_precision=PRECISION)
        value = v + batch * v_stride_b + token[:, None] * v_stride_t + head * V + j[None, :]
        v_CV = tl.load(value, mask=inside[:, None], other=0.0).to(tl.float32)
        db_C += tl.sum(dbv_CV * v_CV, 1)
        target = d_v + batch * d_stride_b + (token[:, None] * heads + head) * V + j[None, :]
        tl.store(target, (dbv_CV * b_C[:, None]).to(d_v.dtype.element_ty), mask=inside[:, None])
    square = chunk * C * C + i[:, None] * C + i[None, :]
    tl.store(d_a + square, da_CC)
    tl.store(d_n + square, dn_CC)
    tl.store(d_beta + chunk * C + i, db_C)


@triton.jit(do_not_specialize=["length", "chunks"])
def reads_backward(
    states, written, d_out, d_states, d_written, d_w, d_read, d_keep, d_last,
    length, stride_b, stride_t, heads, chunks,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """What goes through the states, for WIDE key columns: gradients of W, exp(c) q, exp(c_last - c) k, exp(c_last)."""
    n, m, part = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    chunk = m * chunks + n
    i, k = tl.arange(0, C), part * WIDE + tl.arange(0, WIDE)
    token = n * C + i
    dw_CK = tl.zeros([C, WIDE], tl.float32)
    read_CK = tl.zeros([C, WIDE], tl.float32)
    keep_CK = tl.zeros([C, WIDE], tl.float32)
    last_K = tl.zeros([WIDE], tl.float32)
    for first in range(0, V, BLOCK):
        j = first + tl.arange(0, BLOCK)
        place = chunk * C * V + i[:, None] * V + j[None, :]
        state_VK = tl.load(states + chunk * K * V + k[None, :] * V + j[:, None])
        d_state_VK = tl.load(d_states + chunk * K * V + k[None, :] * V + j[:, None])
        source = d_out + (m // heads) * stride_b + token[:, None] * stride_t + (m % heads) * V + j[None, :]
        do_CV = tl.load(source, mask=token[:, None] < length, other=0.0).to(tl.float32)
        last_K += tl.sum(state_VK * d_state_VK, 0)
        dw_CK -= tl.dot(tl.load(d_written + place), state_VK, input_precision=PRECISION)
        read_CK += tl.dot(do_CV, state_VK, input_precision=PRECISION)
        keep_CK += tl.dot(tl.load(written + place), d_state_VK, input_precision=PRECISION)
    rows = chunk * C * K + i[:, None] * K + k[None, :]
    tl.store(d_w + rows, dw_CK)
    tl.store(d_read + rows, read_CK)
    tl.store(d_keep + rows, keep_CK)
    tl.store(d_last + chunk * (K // WIDE) + part, tl.sum(last_K, 0))


@triton.jit(do_not_specialize=["length", "chunks"])
def keys_backward(
    query, key, beta, w, t, cumulative, d_w, d_last, d_a, d_n, d_b, d_query, d_key, d_g, d_beta,
    length, heads, key_heads, chunks,
    K: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All together: gradients of q and k (in place of `d_read` and `d_keep`), g and b.

    dN = -T^T dT T^T = -((T^T dX) U^T + (T^T dW) W^T) below the diagonal; its first half is there already.
    """
    n, m = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head, chunk, i = m // heads, m % heads, m * chunks + n, tl.arange(0, C)
    key_row = (batch * key_heads + head // (heads // key_heads)) * chunks + n
    token = n * C + i
    inside, gate = token < length, (batch * length + token) * heads + head
    square = chunk * C * C + i[:, None] * C + i[None, :]
    t_transposed_CC = tl.load(t + chunk * C * C + i[:, None] + i[None, :] * C)
    dn_CC = tl.load(d_n + square)
    kk_CC, qk_CC = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
    write_C, keep_C, read_C = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    for first in range(0, K, BLOCK):
        k = first + tl.arange(0, BLOCK)
        rows = i[:, None] * K + k[None, :]
        key_CK, query_CK = tl.load(key + key_row * C * K + rows), tl.load(query + key_row * C * K + rows)
        dwrite_CK = tl.dot(t_transposed_CC, tl.load(d_w + chunk * C * K + rows), input_precision=PRECISION)
        dn_CC -= tl.dot(dwrite_CK, tl.trans(tl.load(w + chunk * C * K + rows)), input_precision=PRECISION)
        kk_CC += tl.dot(key_CK, tl.trans(key_CK), input_precision=PRECISION)
        qk_CC += tl.dot(query_CK, tl.trans(key_CK), input_precision=PRECISION)
        write_C += tl.sum(dwrite_CK * key_CK, 1)
        keep_C += tl.sum(tl.load(d_key + chunk * C * K + rows) * key_CK, 1)
        read_C += tl.sum(tl.load(d_query + chunk * C * K + rows) * query_CK, 1)
    b_C = tl.load(beta + gate, mask=inside, other=0.0).to(tl.float32)
    c_C, last = tl.load(cumulative + chunk * C + i), tl.load(cumulative + chunk * C + C - 1)
    up_C, down_C = tl.exp(c_C), tl.exp(last - c_C)
    until, below = i[:, None] >= i[None, :], i[:, None] > i[None, :]
    decay_CC = tl.exp(tl.where(until, c_C[:, None] - c_C[None, :], 0.0))
    dn_CC = tl.where(below, dn_CC * decay_CC, 0.0)
    da_CC = tl.where(until, tl.load(d_a + square) * decay_CC, 0.0)
    dkk_CC = dn_CC * b_C[:, None]
    db_C = tl.load(d_b + chunk * C + i) + tl.sum(dn_CC * kk_CC, 1) + write_C * up_C
    tl.store(d_beta + gate, db_C.to(d_beta.dtype.element_ty), mask=inside)
    dc_CC = dkk_CC * kk_CC + da_CC * qk_CC
    dc_C = tl.sum(dc_CC, 1) - tl.sum(dc_CC, 0) + (write_C * b_C + read_C) * up_C - keep_C * down_C
    d_last_sum = tl.sum(tl.load(d_last + chunk * PARTS + tl.arange(0, PARTS)), 0) * tl.exp(last)
    dc_C += tl.where(i == C - 1, d_last_sum + tl.sum(keep_C * down_C, 0), 0.0)
    # c is a running sum of g: dg is the sum of all dc from there on.
    tl.store(d_g + gate, tl.sum(dc_C, 0) - tl.cumsum(dc_C, 0) + dc_C, mask=inside)
    dkk_CC += tl.trans(dkk_CC)
    for first in range(0, K, BLOCK):
        k = first + tl.arange(0, BLOCK)
        rows = i[:, None] * K + k[None, :]
        key_CK, query_CK = tl.load(key + key_row * C * K + rows), tl.load(query + key_row * C * K + rows)
        dwrite_CK = tl.dot(t_transposed_CC, tl.load(d_w + chunk * C * K + rows), input_precision=PRECISION)
        dk_CK = dwrite_CK * (b_C * up_C)[:, None] + tl.load(d_key + chunk * C * K + rows) * down_C[:, None]
        dk_CK += tl.dot(dkk_CC, key_CK, input_precision=PRECISION)
        dk_CK += tl.dot(tl.trans(da_CC), query_CK, input_precision=PRECISION)
        tl.store(d_key + chunk * C * K + rows, dk_CK)
        dq_CK = tl.load(d_query + chunk * C * K + rows) * up_C[:, None]
        dq_CK += tl.dot(da_CC, key_CK, input_precision=PRECISION)
        tl.store(d_query + chunk * C * K + rows, dq_CK)


@triton.jit(do_not_specialize=["length", "chunks"])
def unit_rows_backward(
    x, d_rows, dx, length, stride_b, stride_t, d_stride_b, heads, key_heads, chunks, scale,
    K: tl.constexpr, C: tl.constexpr, NORMALISE: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Gradient of `unit_rows`, summed over the value heads that share a key head."""
    n, m = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, key_head, shared = m // key_heads, m % key_heads, heads // key_heads
    token, k = n * C + tl.arange(0, C), tl.arange(0, K)
    inside = token[:, None] < length
    d_CK = tl.zeros([C, K], tl.float32)
    for sharer in range(shared):
        head = batch * heads + key_head * shared + sharer
        d_CK += tl.load(d_rows + (head * chunks * C + token[:, None]) * K + k[None, :])
    if NORMALISE:
        source = x + batch * stride_b + token[:, None] * stride_t + key_head * K + k[None, :]
        x_CK = tl.load(source, mask=inside, other=0.0).to(tl.float32)
        inverse_C = tl.rsqrt(tl.sum(x_CK * x_CK, 1) + EPSILON)
        unit_CK = x_CK * inverse_C[:, None]
        d_CK = (d_CK - unit_CK * tl.sum(d_CK * unit_CK, 1)[:, None]) * inverse_C[:, None]
    target = dx + batch * d_stride_b + (token[:, None] * key_heads + key_head) * K + k[None, :]
    tl.store(target, (d_CK * scale).to(dx.dtype.element_ty), mask=inside)
