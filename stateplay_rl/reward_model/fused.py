"""The decoder's memory-bound parts in one pass each: norms, gates and the short convolution, as Triton kernels.

Plain PyTorch makes each of them from five to ten passes over tensors of 0.4 to 1.3 GB at real size. The functions
have exact gradients for their inputs; the weights are frozen. Chosen by `compute.fused`; the plain path stays.
Shapes: L tokens, D width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from stateplay_rl.errors import CheckError, MissingExtraError
from stateplay_rl.reward_model import few_queries
from stateplay_rl.triton_launch import power_of_two, triton_usable

FusedName = Literal["auto", "triton", "torch"]

_BLOCK = 2048
_ROWS = 32
_TOKENS, _CHANNELS = 8, 128
_LIMITS = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def resolve_fused(name: FusedName, device: torch.device) -> bool:
    """Whether the kernels are used; `auto` takes them on a GPU with Triton.

    Raises:
        MissingExtraError: `triton` where it cannot run.
    """
    if name == "triton" and not triton_usable(device):
        raise MissingExtraError(
            f"fused=triton needs a GPU and Triton (device {device})", "use --set compute.fused=auto"
        )
    return name != "torch" and triton_usable(device)


def _norm_warps(width: int) -> int:
    """A head's row is no work for eight."""
    return min(8, max(1, power_of_two(width) // 256))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        from stateplay_rl.reward_model import fused_kernels as kernels

        x = x.contiguous()
        out, width = torch.empty_like(x), x.shape[-1]
        kernels.norm_forward[(x.numel() // width,)](
            x, weight, out, epsilon, D=width, WIDE=power_of_two(width), num_warps=_norm_warps(width)
        )
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from stateplay_rl.reward_model import fused_kernels as kernels

        x, weight = ctx.saved_tensors
        dx, width = torch.empty_like(x), x.shape[-1]
        kernels.norm_backward[(x.numel() // width,)](
            x, weight, gradients[0].contiguous(), dx, ctx.epsilon,
            D=width, WIDE=power_of_two(width), num_warps=_norm_warps(width),
        )  # fmt: skip
        return dx, None, None


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        from stateplay_rl.reward_model import fused_kernels as kernels

        x, gate = x.contiguous(), gate.contiguous()
        out, width = torch.empty_like(x), x.shape[-1]
        rows = x.numel() // width
        kernels.gated_norm_forward[(-(-rows // _ROWS),)](x, gate, weight, out, rows, epsilon, D=width, ROWS=_ROWS)
        ctx.save_for_backward(x, gate, weight)
        ctx.epsilon = epsilon
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        from stateplay_rl.reward_model import fused_kernels as kernels

        x, gate, weight = ctx.saved_tensors
        dx, d_gate, width = torch.empty_like(x), torch.empty_like(gate), x.shape[-1]
        rows = x.numel() // width
        kernels.gated_norm_backward[(-(-rows // _ROWS),)](
            x, gate, weight, gradients[0].contiguous(), dx, d_gate, rows, ctx.epsilon, D=width, ROWS=_ROWS
        )
        return dx, d_gate, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        from stateplay_rl.reward_model import fused_kernels as kernels

        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        kernels.gated_forward[(-(-gate.numel() // _BLOCK),)](gate, up, out, gate.numel(), BLOCK=_BLOCK)
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        from stateplay_rl.reward_model import fused_kernels as kernels

        gate, up = ctx.saved_tensors
        d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
        kernels.gated_backward[(-(-gate.numel() // _BLOCK),)](
            gate, up, gradients[0].contiguous(), d_gate, d_up, gate.numel(), BLOCK=_BLOCK
        )
        return d_gate, d_up


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        from stateplay_rl.reward_model import fused_kernels as kernels

        x, weight = x.contiguous(), weight.contiguous()
        batch, length, channels = x.shape
        out = torch.empty_like(x)
        kernels.convolution_forward[(-(-length // _TOKENS), -(-channels // _CHANNELS), batch)](
            x, weight, out, length, channels, TAPS=weight.shape[1], TOKENS=_TOKENS, WIDE=_CHANNELS
        )
        ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        from stateplay_rl.reward_model import fused_kernels as kernels

        x, weight = ctx.saved_tensors
        batch, length, channels = x.shape
        dx = torch.empty_like(x)
        kernels.convolution_backward[(-(-length // _TOKENS), -(-channels // _CHANNELS), batch)](
            x, weight, gradients[0].contiguous(), dx, length, channels,
            TAPS=weight.shape[1], TOKENS=_TOKENS, WIDE=_CHANNELS,
        )  # fmt: skip
        return dx, None


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x (1 + w) / rms(x) over the last axis [.., D], in the dtype of x."""
    found: Tensor = _Norm.apply(x, weight, epsilon)  # type: ignore[no-untyped-call]
    return found


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """w x / rms(x) * silu(gate) over the last axis [.., D], a power of two wide, in the dtype of x."""
    found: Tensor = _GatedNorm.apply(x, gate, weight, epsilon)  # type: ignore[no-untyped-call]
    return found


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    found: Tensor = _Gated.apply(gate, up)  # type: ignore[no-untyped-call]
    return found


def convolution(x: Tensor, weight: Tensor) -> Tensor:
    """silu of a causal convolution over tokens [B, L, C], every channel with its own taps, weight [C, taps]."""
    found: Tensor = _Convolution.apply(x, weight)  # type: ignore[no-untyped-call]
    return found


def rotate_(mixed_NPX: Tensor, rotation: tuple[Tensor, Tensor], heads: int) -> None:
    """Rotary positions of a vision block's queries and keys, in place; no gradient.

    Args:
        mixed_NPX: queries, keys and values [N, P, 3 * heads * width], dense.
        rotation: float32 cosine and sine [P, width].
    """
    from stateplay_rl.reward_model import fused_kernels as kernels

    pictures, patches, wide = mixed_NPX.shape
    half = wide // (6 * heads)
    kernels.rotate[(pictures * patches, 2)](
        mixed_NPX, *(x.float().contiguous() for x in rotation), patches, wide, heads,
        HALF=half, WIDE=power_of_two(half), HEADS=power_of_two(heads), num_warps=2,
    )  # fmt: skip


@dataclass(frozen=True)
class FusedNorm:
    """Forward of `Qwen3_5RMSNorm`."""

    module: Any

    def __call__(self, x: Tensor) -> Tensor:
        return norm(x, self.module.weight, self.module.eps)


@dataclass(frozen=True)
class FusedGatedNorm:
    """Forward of `Qwen3_5RMSNormGated`."""

    module: Any

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        return gated_norm(x, gate, self.module.weight, self.module.variance_epsilon)


@dataclass(frozen=True)
class FusedMlp:
    """Forward of `Qwen3_5MLP`."""

    module: Any

    def __call__(self, x: Tensor) -> Tensor:
        found: Tensor = self.module.down_proj(gated(self.module.gate_proj(x), self.module.up_proj(x)))
        return found


@dataclass(frozen=True)
class _InstalledConvolution:
    """Stands in transformers' module for `causal_conv1d_fn`; it remembers what stood there before."""

    library: Callable[..., Tensor]

    def __call__(
        self, hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
    ) -> Tensor:
        if bias is not None or activation != "silu":
            return self.library(hidden_states, weight, bias, activation=activation)
        # [B, C, L] is a view of the projection's [B, L, C]: transposed back it is dense again.
        return convolution(hidden_states.transpose(1, 2), weight).transpose(1, 2)


def install_convolution(on: bool) -> None:
    """Make the DeltaNet layers of transformers' Qwen3.5 call our convolution, or the library's own again."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    found: Any = modeling.causal_conv1d_fn
    library = found.library if isinstance(found, _InstalledConvolution) else found
    modeling.causal_conv1d_fn = _InstalledConvolution(library) if on else library


def check_fused(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Every kernel, and its backward if it has one, against plain PyTorch in float64, on odd sizes.

    Returns:
        Largest error of outputs and gradients, relative to the largest value, by function.

    Raises:
        CheckError: one is further off than rounding of `dtype` explains.
    """
    draw = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(dtype)

    def exact_norm(x: Tensor, w: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w

    wide, narrow, taps = drawn(200), drawn(64), drawn(150, 4)
    cases: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...], tuple[Tensor, ...]]] = {
        "norm": (lambda x, w: norm(x, w, 1e-6), lambda x, w: exact_norm(x, 1 + w), (drawn(1, 37, 200),), (wide,)),
        "gated_norm": (
            lambda x, z, w: gated_norm(x, z, w, 1e-6),
            lambda x, z, w: exact_norm(x, w) * F.silu(z),
            (drawn(70, 64), drawn(70, 64)),
            (narrow,),
        ),
        "gated": (gated, lambda g, u: F.silu(g) * u, (drawn(1, 50, 99), drawn(1, 50, 99)), ()),
        "convolution": (
            convolution,
            lambda x, w: F.silu(F.conv1d(F.pad(x.mT, (3, 0)), w[:, None], groups=150)).mT,
            (drawn(2, 45, 150),),
            (taps,),
        ),
    }
    found = {name: _worst(*case, device) for name, case in cases.items()}
    found["few_queries"] = few_queries.error(drawn(1, 16, 3, 64), drawn(1, 4, 150, 64), drawn(1, 4, 150, 64), device)
    for name, error in found.items():
        if not error < _LIMITS[dtype]:
            raise CheckError(
                f"the fused {name} on {device} is wrong: off by {error:.2g} of the largest value",
                "use --set compute.fused=torch",
            )
    return found


def _worst(
    fast: Callable[..., Tensor],
    plain: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    weights: tuple[Tensor, ...],
    device: torch.device,
) -> float:
    exact = [x.double().requires_grad_() for x in inputs]
    expected = plain(*exact, *(w.double() for w in weights))
    direction = torch.linspace(-1.0, 1.0, expected.numel(), dtype=torch.float64).reshape(expected.shape)
    wanted = [expected.detach(), *torch.autograd.grad((expected * direction).sum(), exact)]
    there = [x.to(device).requires_grad_() for x in inputs]
    out = fast(*there, *(w.to(device) for w in weights))
    got = [out.detach(), *torch.autograd.grad((out.double() * direction.to(device)).sum(), there)]
    return max(float((a.double().cpu() - b).abs().max() / b.abs().max()) for a, b in zip(got, wanted, strict=True))
