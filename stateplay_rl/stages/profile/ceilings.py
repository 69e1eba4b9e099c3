"""Ceilings of a machine: the most that matrix products, attention and memory give at a world's own sizes.

Shapes: N tokens, D width, h heads, d head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from stateplay_rl.stages.profile.meter import Meter
from stateplay_rl.worlds.native.speed import BACKENDS

TERA = 1e12
FORWARD_AND_BACKWARD = 3.5
"""Products of attention with its backward, relative to the forward: 2 forward, 5 backward."""


@dataclass(frozen=True)
class Attended:
    """Attention by one kernel: seconds of one layer and the rates behind them (TFLOP/s); None: not available here."""

    forward_seconds: float
    both_seconds: float
    forward_tflops: float
    both_tflops: float
    error: float


@dataclass(frozen=True)
class Ceilings:
    """What the machine gives.

    Args:
        matmul_tflops: best matrix product of those tried.
        matmuls: by name of the size.
        memory_gb_per_second: reading and writing a large tensor, bytes both ways.
        attention: by backend; `torch` is its own choice.
        unavailable: backend -> why it does not run here.
    """

    matmul_tflops: float
    matmuls: Mapping[str, float]
    memory_gb_per_second: float
    attention: Mapping[str, Attended]
    unavailable: Mapping[str, str]

    @property
    def fastest(self) -> str:
        """The attention backend with the shortest forward."""
        return min(self.attention, key=lambda name: self.attention[name].forward_seconds)


def measure_ceilings(
    meter: Meter, dtype: torch.dtype, tokens: int, heads: int, head_dim: int, ffn_dim: int, repeats: int
) -> Ceilings:
    """All ceilings in the compute dtype.

    Args:
        tokens: N of one video.
        ffn_dim: inner width of the feed-forward network, for a matrix product of the world's own shape.
    """
    dim = heads * head_dim
    square = 8192 if meter.on_gpu else 256
    sizes = {
        "square": (square, square, square),
        "ffn": (tokens, dim, ffn_dim),
        "projection": (tokens, dim, dim),
    }
    products = {name: _matmul(meter, dtype, size, repeats) for name, size in sizes.items()}
    attention: dict[str, Attended] = {}
    unavailable: dict[str, str] = {}
    generator = torch.Generator(meter.device).manual_seed(0)
    shape = (1, heads, tokens, head_dim)
    query, key, value = (torch.randn(shape, device=meter.device, generator=generator).to(dtype) for _ in range(3))
    qkv = (query, key, value)
    plain = F.scaled_dot_product_attention(query, key, value)
    for name, backend in {"torch": None, **BACKENDS}.items():
        try:
            attention[name] = _attention(meter, qkv, plain, backend, repeats)
        except RuntimeError as error:
            unavailable[name] = str(error).splitlines()[0]
    return Ceilings(max(products.values()), products, _memory(meter, repeats), attention, unavailable)


def _matmul(meter: Meter, dtype: torch.dtype, size: tuple[int, int, int], repeats: int) -> float:
    rows, inner, columns = size
    left = torch.randn(rows, inner, device=meter.device).to(dtype)
    right = torch.randn(columns, inner, device=meter.device).to(dtype)
    calls = 10
    seconds = meter.measure(lambda: [F.linear(left, right) for _ in range(calls)], repeats).seconds / calls
    return 2.0 * rows * inner * columns / seconds / TERA


def _memory(meter: Meter, repeats: int) -> float:
    size = (1 << 30) if meter.on_gpu else (1 << 24)
    source = torch.zeros(size, dtype=torch.uint8, device=meter.device)
    target = torch.empty_like(source)
    return 2.0 * size / meter.measure(lambda: target.copy_(source), repeats).seconds / 1e9


def _attention(
    meter: Meter, qkv: tuple[Tensor, Tensor, Tensor], plain: Tensor, backend: SDPBackend | None, repeats: int
) -> Attended:
    query, key, value = (x.detach().requires_grad_() for x in qkv)
    gradient = torch.ones_like(plain)

    def attend() -> Tensor:
        if backend is None:
            return F.scaled_dot_product_attention(query, key, value)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value)

    def both() -> None:
        torch.autograd.grad(attend(), (query, key, value), gradient)

    with torch.no_grad():
        error = float((attend().float() - plain.float()).norm() / plain.float().norm())
        forward = meter.measure(attend, repeats).seconds
    trained = meter.measure(both, repeats).seconds
    _, heads, tokens, head_dim = plain.shape
    work = 4.0 * tokens**2 * heads * head_dim / TERA
    return Attended(forward, trained, work / forward, FORWARD_AND_BACKWARD * work / trained, error)
