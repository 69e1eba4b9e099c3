"""The gated delta rule through our own Triton kernels, with exact gradients; the same call as `chunked_delta_rule`.

Long inputs go through in segments: the forward pass keeps the state at each segment's start, the backward pass makes
the rest again, so that working memory does not grow with the length. Arithmetic: float32 sums; products in TF32 for
half-precision inputs, in three TF32 products, as exact as float32, for float32 ones. Shapes as in `delta_rule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stateplay_rl.errors import UsageError
from stateplay_rl.reward_model.delta_rule import CHUNK_TOKENS, NORM_EPSILON

SEGMENT_TOKENS = 8192
"""At the 9B's 32 heads a segment's working set is about 2 GB, backward included."""
STATE_BLOCK = 32
"""Value columns of one program of the recurrence: 32 heads x 4 blocks fill a card of 132 processors."""
COLUMN_BLOCK = 64
LOADING_AHEAD_BYTES = 190_000
"""Shared memory of a block from which on the recurrence loads the next chunk while it computes one; data-centre cards
have it. The numbers are the same."""
SMALL_WIDTH = 16
"""Keys so narrow take four warps: with eight, Triton 3.6 on Hopper reads beyond its shared memory."""


def triton_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = CHUNK_TOKENS,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    segment_tokens: int = SEGMENT_TOKENS,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """`chunked_delta_rule` on a GPU; float64 is not supported.

    Args and returns: as there; `segment_tokens` is a multiple of `chunk_size`.

    Raises:
        UsageError: head widths or chunks that are no powers of two from 16, or float64.
    """
    if query.dtype == torch.float64:
        raise UsageError("the Triton delta rule has no float64", "use --set compute.delta_rule=chunked")
    for size in (query.shape[-1], value.shape[-1], chunk_size):
        if size < 16 or size & (size - 1):
            raise UsageError(
                f"the Triton delta rule takes widths and chunks of 16, 32, 64, ..., not {size}",
                "use --set compute.delta_rule=chunked",
            )
    batch, _length, heads, width = value.shape
    if initial_state is None:
        initial_state = value.new_zeros(batch, heads, key.shape[-1], width, dtype=torch.float32)
    out, state = _DeltaRule.apply(  # type: ignore[no-untyped-call]
        query, key, value, g, beta, initial_state, chunk_size, use_qk_l2norm_in_kernel, segment_tokens
    )
    return out, state if output_final_state else None


@dataclass(frozen=True)
class _Sizes:
    """Sizes of one segment, and what the kernels are compiled for."""

    batch: int
    length: int
    heads: int
    key_heads: int
    k: int
    v: int
    chunk: int
    normalise: bool
    precision: str

    @property
    def chunks(self) -> int:
        return -(-self.length // self.chunk)

    @property
    def rows(self) -> int:
        """M: batch times heads."""
        return self.batch * self.heads

    def kept(self, like: Tensor, *shape: int) -> Tensor:
        """Uninitialised float32 for every chunk of every head."""
        return like.new_empty(self.rows, self.chunks, *shape, dtype=torch.float32)


@dataclass(frozen=True)
class _Chunks:
    """What the forward pass makes of a segment, float32: see the table in `delta_kernels`."""

    query: Tensor
    key: Tensor
    u: Tensor
    w: Tensor
    t: Tensor
    cumulative: Tensor
    states: Tensor
    written: Tensor
    end: Tensor


def _dense_heads(x: Tensor) -> Tensor:
    """As it is when the last two axes lie together (a slice of a wider projection does), else a copy."""
    return x if x.stride(-1) == 1 and x.stride(-2) == x.shape[-1] else x.contiguous()


def _unit_rows(x: Tensor, sizes: _Sizes, scale: float) -> Tensor:
    from stateplay_rl.reward_model import delta_kernels as kernels

    out = x.new_empty(sizes.batch * sizes.key_heads, sizes.chunks * sizes.chunk, sizes.k, dtype=torch.float32)
    kernels.unit_rows[(sizes.chunks, len(out))](
        x, out, sizes.length, x.stride(0), x.stride(1), sizes.key_heads, sizes.chunks, scale,
        K=sizes.k, C=sizes.chunk, NORMALISE=sizes.normalise, EPSILON=NORM_EPSILON,
    )  # fmt: skip
    return out


def _recurrence_stages(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    properties: Any = torch.cuda.get_device_properties(device)
    room: int = properties.shared_memory_per_block_optin
    return 2 if room >= LOADING_AHEAD_BYTES else 1


def _prepare(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, start: Tensor, sizes: _Sizes
) -> _Chunks:
    from stateplay_rl.reward_model import delta_kernels as kernels

    units = (_unit_rows(query, sizes, sizes.k**-0.5), _unit_rows(key, sizes, 1.0))
    u, w = sizes.kept(value, sizes.chunk, sizes.v), sizes.kept(value, sizes.chunk, sizes.k)
    t, cumulative = sizes.kept(value, sizes.chunk, sizes.chunk), sizes.kept(value, sizes.chunk)
    common = (sizes.heads, sizes.key_heads, sizes.chunks, sizes.k, sizes.v, sizes.chunk)
    kernels.systems[(sizes.chunks, sizes.rows)](
        units[1], g, beta, t, cumulative, sizes.length, sizes.heads, sizes.key_heads, sizes.chunks,
        K=sizes.k, C=sizes.chunk, PRECISION=sizes.precision,
    )  # fmt: skip
    # One warp, and always as exact as float32: this is the little work that all the rest is multiplied with.
    kernels.invert[(sizes.rows * sizes.chunks,)](
        t, C=sizes.chunk, PARTS=sizes.chunk // 16, PRECISION="tf32x3", num_warps=1
    )
    kernels.solved[(sizes.chunks, sizes.rows)](
        units[1], value, beta, t, cumulative, u, w, sizes.length, value.stride(0), value.stride(1), *common,
        PRECISION=sizes.precision,
    )  # fmt: skip
    states, written, end = sizes.kept(value, sizes.k, sizes.v), torch.empty_like(u), torch.empty_like(start)
    block = min(STATE_BLOCK, sizes.v)
    kernels.states_forward[(sizes.v // block, sizes.rows)](
        units[1], u, w, cumulative, start, states, written, end, *common, BLOCK=block, PRECISION=sizes.precision,
        num_stages=_recurrence_stages(value.device),
    )  # fmt: skip
    return _Chunks(*units, u, w, t, cumulative, states, written, end)


def _segment_forward(inputs: Sequence[Tensor], start: Tensor, out: Tensor, sizes: _Sizes) -> Tensor:
    """Writes a segment's outputs; returns the state after it."""
    from stateplay_rl.reward_model import delta_kernels as kernels

    made = _prepare(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], start, sizes)
    block = min(COLUMN_BLOCK, sizes.v)
    kernels.outputs[(sizes.chunks, sizes.rows, sizes.v // block)](
        made.query, made.key, made.cumulative, made.states, made.written, out,
        sizes.length, out.stride(0), out.stride(1),
        sizes.heads, sizes.key_heads, sizes.chunks, sizes.k, sizes.v, sizes.chunk,
        BLOCK=block, PRECISION=sizes.precision,
    )  # fmt: skip
    return made.end


def _segment_backward(
    inputs: Sequence[Tensor], start: Tensor, d_out: Tensor, d_end: Tensor, d_qkv: Sequence[Tensor], sizes: _Sizes
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes gradients of a segment's q, k, v; returns those of g, beta, and of the state before it."""
    from stateplay_rl.reward_model import delta_kernels as kernels

    query, key, value, g, beta = inputs
    made = _prepare(query, key, value, g, beta, start, sizes)
    tail = (sizes.heads, sizes.key_heads, sizes.chunks, sizes.k, sizes.v, sizes.chunk)
    shape = (sizes.length, d_out.stride(0), d_out.stride(1))
    d_written, d_states, d_start = torch.empty_like(made.u), torch.empty_like(made.states), torch.empty_like(d_end)
    kernels.written_backward[(sizes.chunks, sizes.rows)](
        made.query, made.key, made.cumulative, d_out, d_written, *shape, *tail, PRECISION=sizes.precision
    )
    block = min(STATE_BLOCK, sizes.v)
    kernels.states_backward[(sizes.v // block, sizes.rows)](
        made.query, made.key, made.w, made.cumulative, d_out, d_end, d_states, d_written, d_start, *shape, *tail,
        BLOCK=block, PRECISION=sizes.precision, num_warps=8, num_stages=_recurrence_stages(value.device),
    )  # fmt: skip
    d_a, d_n = (torch.empty_like(made.t) for _ in range(2))
    d_b = torch.empty_like(made.cumulative)
    kernels.values_backward[(sizes.chunks, sizes.rows)](
        value, beta, made.u, made.t, made.written, d_out, d_written, d_qkv[2], d_b, d_a, d_n,
        sizes.length, value.stride(0), value.stride(1), d_out.stride(0), d_out.stride(1), d_qkv[2].stride(0),
        sizes.heads, sizes.chunks,
        V=sizes.v, C=sizes.chunk, BLOCK=block, PRECISION=sizes.precision, num_stages=1,
    )  # fmt: skip
    d_w, d_query, d_key = (torch.empty_like(made.w) for _ in range(3))
    wide = min(COLUMN_BLOCK, sizes.k)
    d_last = sizes.kept(value, sizes.k // wide)
    kernels.reads_backward[(sizes.chunks, sizes.rows, sizes.k // wide)](
        made.states, made.written, d_out, d_states, d_written, d_w, d_query, d_key, d_last, *shape,
        sizes.heads, sizes.chunks, sizes.k, sizes.v, sizes.chunk, BLOCK=block, WIDE=wide, PRECISION=sizes.precision,
        num_stages=1,
    )  # fmt: skip
    d_g, d_beta = torch.empty_like(g), torch.empty_like(beta)
    kernels.keys_backward[(sizes.chunks, sizes.rows)](
        made.query, made.key, beta, made.w, made.t, made.cumulative, d_w, d_last, d_a, d_n, d_b,
        d_query, d_key, d_g, d_beta, sizes.length, sizes.heads, sizes.key_heads, sizes.chunks,
        K=sizes.k, C=sizes.chunk, BLOCK=min(STATE_BLOCK, sizes.k), PARTS=sizes.k // wide, PRECISION=sizes.precision,
        num_warps=4 if sizes.k <= SMALL_WIDTH else 8, num_stages=1,
    )  # fmt: skip
    for x, d_rows, dx, scale in ((query, d_query, d_qkv[0], sizes.k**-0.5), (key, d_key, d_qkv[1], 1.0)):
        kernels.unit_rows_backward[(sizes.chunks, sizes.batch * sizes.key_heads)](
            x, d_rows, dx, sizes.length, x.stride(0), x.stride(1), dx.stride(0),
            sizes.heads, sizes.key_heads, sizes.chunks, scale,
            K=sizes.k, C=sizes.chunk, NORMALISE=sizes.normalise, EPSILON=NORM_EPSILON,
        )  # fmt: skip
    return d_g, d_beta, d_start


class _DeltaRule(torch.autograd.Function):
    """(q, k, v, g, beta, state) -> (outputs, state after the last token)."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        query, key, value, g, beta, state, chunk, normalise, segment = arguments
        q, k, v = (_dense_heads(x) for x in (query, key, value))
        inputs = (q, k, v, g.float().contiguous(), beta.contiguous())
        ctx.settings = (chunk, normalise, segment, g.dtype, state.dtype)
        state = state.float().contiguous()
        starts = []
        out = torch.empty(v.shape, dtype=query.dtype, device=v.device)
        for first in range(0, v.shape[1], segment):
            starts.append(state)
            piece = _piece(inputs, first, segment)
            state = _segment_forward(piece, state, out[:, first : first + segment], _sizes(piece, chunk, normalise))
        ctx.save_for_backward(*inputs, torch.stack(starts))
        return out, state

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, starts = ctx.saved_tensors
        chunk, normalise, segment, g_dtype, state_dtype = ctx.settings
        d_out, d_state = _dense_heads(gradients[0]), gradients[1].float().contiguous()
        d_qkv = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs[:3]]
        gates: list[tuple[Tensor, Tensor]] = []
        for number in reversed(range(len(starts))):
            first = number * segment
            piece = _piece(inputs, first, segment)
            part = [x[:, first : first + segment] for x in (d_out, *d_qkv)]
            sizes = _sizes(piece, chunk, normalise)
            *made, d_state = _segment_backward(piece, starts[number], part[0], d_state, part[1:], sizes)
            gates.insert(0, (made[0], made[1]))
        d_g, d_beta = (torch.cat(parts, dim=1) for parts in zip(*gates, strict=True))
        return (*d_qkv, d_g.to(g_dtype), d_beta, d_state.to(state_dtype), None, None, None)


def _piece(inputs: Sequence[Tensor], first: int, tokens: int) -> list[Tensor]:
    """Tokens of one segment; decay and strength as copies, since their kernels know no strides."""
    q, k, v, g, beta = (x[:, first : first + tokens] for x in inputs)
    return [q, k, v, g.contiguous(), beta.contiguous()]


def _sizes(piece: Sequence[Tensor], chunk: int, normalise: bool) -> _Sizes:
    query, _, value = piece[:3]
    batch, length, heads, width = value.shape
    precision = "tf32x3" if query.dtype == torch.float32 else "tf32"
    return _Sizes(batch, length, heads, query.shape[2], query.shape[-1], width, chunk, normalise, precision)
