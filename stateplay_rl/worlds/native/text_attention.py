"""Attention to a text whose padding is one key many times over.

The text context is zero behind the prompt, so all keys there are equal, and so are all values: the softmax needs one of
them, counted as often as it stands there. Prompts of the game have some 100 tokens of 512. Two Triton kernels; on a CPU
the same numbers by plain attention. Text is frozen: there is a gradient for the queries alone.

Shapes: B batch, h heads, N queries, L text tokens, d head width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stateplay_rl.triton_launch import LEAST_WIDTH, power_of_two

_QUERIES, _KEYS, _WARPS = 64, 64, 4
"""Of one program: queries that it keeps, keys that it takes at a time, warps."""


def text_attention(q_BhNd: Tensor, k_BhLd: Tensor, v_BhLd: Tensor, lengths_B: Tensor) -> Tensor:
    """softmax(q k' / sqrt(d)) v over all L text tokens, [B, N, h*d].

    Args:
        lengths_B: int32, tokens of the prompts; keys and values behind them must all equal the last one.

    Raises:
        RuntimeError: keys or values require a gradient, and a backward asks for it.
    """
    out_BND, _ = torch.ops.stateplay_rl.text_attention(q_BhNd, k_BhLd, v_BhLd, lengths_B)
    return out_BND  # type: ignore[no-any-return]


@torch.library.custom_op("stateplay_rl::text_attention", mutates_args=(), device_types="cpu")
def _forward(q_BhNd: Tensor, k_BhLd: Tensor, v_BhLd: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    scores_BhNL = _scores(q_BhNd, k_BhLd)
    lse_BhN = scores_BhNL.logsumexp(-1)
    out_BhNd = F.scaled_dot_product_attention(q_BhNd, k_BhLd, v_BhLd)
    return out_BhNd.transpose(1, 2).flatten(2).contiguous(), lse_BhN


@_forward.register_fake
def _(q_BhNd: Tensor, k_BhLd: Tensor, v_BhLd: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    batch, heads, queries, width = q_BhNd.shape
    out_BND = q_BhNd.new_empty(batch, queries, heads * width)
    return out_BND, q_BhNd.new_empty(batch, heads, queries, dtype=torch.float32)


@torch.library.custom_op("stateplay_rl::text_attention_backward", mutates_args=(), device_types="cpu")
def _backward(
    q_BhNd: Tensor,
    k_BhLd: Tensor,
    v_BhLd: Tensor,
    lengths_B: Tensor,
    out_BND: Tensor,
    lse_BhN: Tensor,
    d_out_BND: Tensor,
) -> Tensor:
    heads, width = q_BhNd.shape[1], q_BhNd.shape[3]
    p_BhNL = (_scores(q_BhNd, k_BhLd) - lse_BhN.unsqueeze(-1)).exp()
    out_BhNd, d_out_BhNd = (torch.unflatten(x.float(), 2, (heads, width)).transpose(1, 2) for x in (out_BND, d_out_BND))
    d_p_BhNL = d_out_BhNd @ v_BhLd.float().transpose(-1, -2)
    d_scores_BhNL = p_BhNL * (d_p_BhNL - (out_BhNd * d_out_BhNd).sum(-1, keepdim=True))
    d_q_BhNd: Tensor = (d_scores_BhNL @ k_BhLd.float() / math.sqrt(width)).to(q_BhNd.dtype)
    return d_q_BhNd.transpose(1, 2).contiguous().transpose(1, 2)


@_backward.register_fake
def _(q_BhNd: Tensor, *_: Tensor) -> Tensor:
    batch, heads, queries, width = q_BhNd.shape
    return q_BhNd.new_empty(batch, queries, heads, width).transpose(1, 2)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.frozen_text = not any(ctx.needs_input_grad[1:3])


def _gradient(ctx: Any, d_out_BND: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    if not ctx.frozen_text:
        raise RuntimeError("text attention has no gradient for keys and values: use `attend` where they are trained")
    return torch.ops.stateplay_rl.text_attention_backward(*ctx.saved_tensors, d_out_BND), None, None, None


_forward.register_autograd(_gradient, setup_context=_save)


@_forward.register_kernel("cuda")
def launch_forward(q_BhNd: Tensor, k_BhLd: Tensor, v_BhLd: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """The forward kernel: out [B, N, h*d], log-sum-exp in base 2 [B, h, N]."""
    from stateplay_rl.worlds.native import text_attention_kernels as kernels

    q, k, v = (_rows(x) for x in (q_BhNd, k_BhLd, v_BhLd))
    batch, heads, queries, width = q.shape
    out_BND = q.new_empty(batch, queries, heads * width)
    lse_BhN = q.new_empty(batch, heads, queries, dtype=torch.float32)
    kernels.text_forward[_grid(q)](q, k, v, lengths_B, out_BND, lse_BhN, *_numbers(q, k, v), **_constants(q))
    return out_BND, lse_BhN


@_backward.register_kernel("cuda")
def launch_backward(
    q_BhNd: Tensor,
    k_BhLd: Tensor,
    v_BhLd: Tensor,
    lengths_B: Tensor,
    out_BND: Tensor,
    lse_BhN: Tensor,
    d_out_BND: Tensor,
) -> Tensor:
    """The backward kernel: gradient of the queries, [B, h, N, d]."""
    from stateplay_rl.worlds.native import text_attention_kernels as kernels

    q, k, v = (_rows(x) for x in (q_BhNd, k_BhLd, v_BhLd))
    batch, heads, queries, width = q.shape
    d_q_BNhd = q.new_empty(batch, queries, heads, width)
    kernels.text_backward[_grid(q)](
        q, k, v, lengths_B, out_BND.contiguous(), lse_BhN.contiguous(), d_out_BND.contiguous(), d_q_BNhd,
        *_numbers(q, k, v), **_constants(q),
    )  # fmt: skip
    return d_q_BNhd.transpose(1, 2)


def _scores(q_BhNd: Tensor, k_BhLd: Tensor) -> Tensor:
    return q_BhNd.float() @ k_BhLd.float().transpose(-1, -2) / math.sqrt(q_BhNd.shape[-1])


def _rows(x: Tensor) -> Tensor:
    """A head's row must lie in one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _grid(q_BhNd: Tensor) -> tuple[int, int, int]:
    batch, heads, queries, _ = q_BhNd.shape
    return -(-queries // _QUERIES), heads, batch


def _numbers(q: Tensor, k: Tensor, v: Tensor) -> tuple[float | int, ...]:
    """Scale for powers of two, sizes, and the strides of batch, head and row."""
    scale = math.log2(math.e) / math.sqrt(q.shape[-1])
    return scale, q.shape[2], k.shape[2], q.shape[1], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3]


def _constants(q: Tensor) -> dict[str, Any]:
    width = q.shape[-1]
    return {
        "D": width,
        "WIDE": power_of_two(width, LEAST_WIDTH),
        "M": _QUERIES,
        "K": _KEYS,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": _WARPS,
        "num_stages": 2,
    }
