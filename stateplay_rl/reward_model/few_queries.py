"""Attention of a few tokens to a long cache whose filled length only the device knows, so that a graph can hold it.

torch's own kernels take the length from the shapes, which a graph would freeze. Here the cache has room to spare and
`filled` says how much of it counts. Shapes: S queries, H query heads, K key heads, M places, D width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stateplay_rl.triton_launch import LEAST_WIDTH, power_of_two

PARTS = 64
"""Pieces that the keys are cut into: with 4 key heads 256 programs, which fill a card."""
FEW_ROWS = 16
"""Up to so many rows (query heads of a key head, times queries) 32 keys are read at a time, else 16: 100 KB of shared
memory are enough."""
NAME = "few_queries"
"""Under which transformers finds it."""


def attend(
    query: Tensor, keys: Tensor, values: Tensor, filled: Tensor, scale: float, *, kernels: bool = True
) -> Tensor:
    """Causal attention of the last S filled places.

    Args:
        query: [1, H, S, D].
        keys, values: [1, K, M, D], dense; K divides H.
        filled: how many of the M places count, the S new ones included; integer, one element.
        scale: on the scores.
        kernels: Triton; otherwise plain PyTorch, which reads all M places.

    Returns:
        [1, S, H, D].
    """
    return (_by_kernels if kernels else _plain)(query, keys, values, filled, scale)


def _by_kernels(query: Tensor, keys: Tensor, values: Tensor, filled: Tensor, scale: float) -> Tensor:
    from stateplay_rl.reward_model import fused_kernels

    _, heads, count, head_width = query.shape
    key_heads, room = keys.shape[1:3]
    width = power_of_two(head_width, LEAST_WIDTH)
    if width != head_width:
        # The 9B's heads are 256 wide; of a small model's odd ones a copy is nothing.
        query, keys, values = (F.pad(x, (0, width - head_width)) for x in (query, keys, values))
    query = query.contiguous()
    group, rows = heads // key_heads, heads * count
    part = query.new_empty(PARTS, rows, width, dtype=torch.float32)
    largest, weight = (query.new_empty(PARTS, rows, dtype=torch.float32) for _ in range(2))
    padded = power_of_two(group * count, LEAST_WIDTH)
    fused_kernels.few_queries_part[(PARTS, key_heads)](
        query, keys, values, filled, part, largest, weight, room, scale,
        S=count, GROUP=group, D=width, ROWS=padded, BLOCK=32 if padded <= FEW_ROWS else 16, PARTS=PARTS,
        PRECISION="tf32x3" if query.dtype == torch.float32 else "tf32",
        num_stages=1,
    )  # fmt: skip
    out = torch.empty_like(query)
    fused_kernels.few_queries_join[(rows,)](part, largest, weight, out, rows, D=width, PARTS=PARTS)
    return out[..., :head_width].transpose(1, 2)


def _plain(query: Tensor, keys: Tensor, values: Tensor, filled: Tensor, scale: float) -> Tensor:
    group, count = query.shape[1] // keys.shape[1], query.shape[2]
    working = torch.promote_types(query.dtype, torch.float32)
    keys, values = (x.to(working).repeat_interleave(group, dim=1) for x in (keys, values))
    place_M = torch.arange(keys.shape[2], device=keys.device)
    until_S1 = filled - count + torch.arange(count, device=keys.device)[:, None]
    scores_HSM = (query.to(working) @ keys.mT * scale).masked_fill(place_M > until_S1, -torch.inf)
    return (scores_HSM.softmax(-1) @ values).to(query.dtype).transpose(1, 2)


def error(query: Tensor, keys: Tensor, values: Tensor, device: torch.device) -> float:
    """Largest error of the kernels on a device against float64, relative to the largest value.

    Args:
        query, keys, values: as of `attend`, on the CPU.
    """
    filled = torch.tensor([keys.shape[2] - 20])
    found = attend(query.to(device), keys.to(device), values.to(device), filled.to(device), 0.2)
    expected = _plain(query.double(), keys.double(), values.double(), filled, 0.2)
    return float((found.double().cpu() - expected).abs().max() / expected.abs().max())


def install() -> None:
    """Make it known to transformers' attention layers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _called_by_layer)


def _called_by_layer(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    filled: Tensor,
    kernels: bool,
    **_: Any,
) -> tuple[Tensor, None]:
    return attend(query, key, value, filled, scaling, kernels=kernels), None
