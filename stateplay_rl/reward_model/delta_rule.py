"""The gated delta rule of Qwen3.5's DeltaNet layers, chunked, in plain PyTorch, with exact gradients.

Source: "Gated Delta Networks" (arXiv 2412.06464), section 3; the chunk algebra is that of transformers'
`torch_chunk_gated_delta_rule`. Differences: only the state recurrence runs chunk by chunk (three kernels each), all
reads are done for all chunks at once; long inputs go through in segments that are recomputed in the backward pass, so
that the working memory does not grow with the length; autocast is off inside, sums are float32 (float64 for float64).

On a GPU `delta_triton` computes the same with kernels of our own. flash-linear-attention can be chosen, but refuses or
falsifies its backward on some versions of Triton.
Shapes: B batch, L tokens, H value heads, K key width, V value width, N chunks, C tokens a chunk, M = B * H.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from stateplay_rl.errors import CheckError, MissingExtraError, UsageError
from stateplay_rl.triton_launch import triton_usable

Rule = Callable[..., tuple[Tensor, Tensor | None]]
RuleName = Literal["auto", "chunked", "triton", "fla"]

CHUNK_TOKENS = 64
SEGMENT_TOKENS = 2048
"""At the 9B's 32 heads the float32 working set of a segment is about 1 GB, backward included."""
WRONG_TRITON = ((3, 4, 0), (3, 7, 0))
"""Triton versions, both included, on which flash-linear-attention's backward is known to be wrong on Hopper."""
HOPPER = (9, 0)
NORM_EPSILON = 1e-6


def chunked_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = CHUNK_TOKENS,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """S_t = exp(g_t) S_{t-1} (I - beta_t k_t k_t^T) + beta_t k_t v_t^T; o_t = S_t^T q_t / sqrt(K).

    Argument names are those of flash-linear-attention, because transformers passes them by name.

    Args:
        query, key: [B, L, H or a divisor of it, K].
        value: [B, L, H, V].
        g: log decay, at most 0, [B, L, H].
        beta: write strength 0..1, [B, L, H].
        chunk_size: tokens a chunk.
        initial_state: [B, H, K, V], None for zeros.
        output_final_state: whether the last state is returned.
        use_qk_l2norm_in_kernel: normalise queries and keys to length 1 first.

    Returns:
        Outputs [B, L, H, V] in the dtype of `query`, and the last state [B, H, K, V] or None.
    """
    working = torch.float64 if query.dtype == torch.float64 else torch.float32
    batch, length, heads, width = value.shape
    state = (
        torch.zeros(batch, heads, key.shape[-1], width, dtype=working, device=value.device)
        if initial_state is None
        else initial_state.to(working)
    )
    outputs: list[Tensor] = []
    recompute = torch.is_grad_enabled() and length > SEGMENT_TOKENS
    with torch.autocast(value.device.type, enabled=False):
        # Split, not sliced: the gradient of a slice is as long as the whole.
        pieces = (torch.split(x, SEGMENT_TOKENS, dim=1) for x in (query, key, value, g, beta))
        for q, k, v, decay, strength in zip(*pieces, strict=True):
            arguments = (q, k, v, decay, strength, state)
            if recompute:
                out, state = checkpoint(
                    _segment,
                    *arguments,
                    chunk_size,
                    use_qk_l2norm_in_kernel,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            else:
                out, state = _segment(*arguments, chunk_size, use_qk_l2norm_in_kernel)
            outputs.append(out)
    return torch.cat(outputs, dim=1), state if output_final_state else None


def _segment(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state_BHKV: Tensor, chunk: int, normalise: bool
) -> tuple[Tensor, Tensor]:
    """One segment: outputs [B, L, H, V] and the state after it."""
    dtype, working = query.dtype, state_BHKV.dtype
    batch, length, heads, width = value.shape
    repeat = heads // key.shape[2]
    query, key = query.to(working), key.to(working)
    if normalise:
        query, key = _unit(query), _unit(key)
    query = query * query.shape[-1] ** -0.5
    if repeat > 1:
        query, key = query.repeat_interleave(repeat, dim=2), key.repeat_interleave(repeat, dim=2)
    # Padded tokens have beta 0 and decay 1: they leave the state alone.
    query_NMCK, key_NMCK, value_NMCV = (_chunks(x, chunk) for x in (query, key, value.to(working)))
    g_NMC, beta_NMC1 = _chunks(g.to(working)[..., None], chunk)[..., 0], _chunks(beta.to(working)[..., None], chunk)
    cumulative_NMC = g_NMC.cumsum(-1)
    later_CC = torch.ones(chunk, chunk, dtype=torch.bool, device=g.device).triu(1)
    # Masked before exp: the upper half would overflow.
    decay_NMCC = (cumulative_NMC[..., None] - cumulative_NMC[..., None, :]).masked_fill(later_CC, -torch.inf).exp()
    write_NMCK = key_NMCK * beta_NMC1
    system_NMCC = (write_NMCK @ key_NMCK.mT) * decay_NMCC
    right = torch.cat((value_NMCV * beta_NMC1, write_NMCK * cumulative_NMC.exp()[..., None]), dim=-1)
    solved = torch.linalg.solve_triangular(system_NMCC, right, upper=False, unitriangular=True)
    new_NMCV, read_NMCK = solved.split((width, key.shape[-1]), dim=-1)
    key_out_NMKC = (key_NMCK * (cumulative_NMC[..., -1:] - cumulative_NMC).exp()[..., None]).mT
    decay_NM11 = cumulative_NMC[..., -1].exp()[..., None, None]
    states, written = [], []
    state_MKV = state_BHKV.flatten(0, 1)
    for new, read, key_out, keep in zip(
        new_NMCV.unbind(0), read_NMCK.unbind(0), key_out_NMKC.unbind(0), decay_NM11.unbind(0), strict=True
    ):
        states.append(state_MKV)
        # What the old state already answers is taken out before it is written: the delta rule.
        written.append(torch.baddbmm(new, read, state_MKV, alpha=-1.0))
        state_MKV = torch.baddbmm(state_MKV * keep, key_out, written[-1])
    inside_NMCC = (query_NMCK @ key_NMCK.mT) * decay_NMCC
    query_in_NMCK = query_NMCK * cumulative_NMC.exp()[..., None]
    out_NMCV = query_in_NMCK @ torch.stack(states) + inside_NMCC @ torch.stack(written)
    out_NBHCV = out_NMCV.reshape(-1, batch, heads, chunk, width)
    out_BLHV = out_NBHCV.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
    return out_BLHV.to(dtype).contiguous(), state_MKV.reshape(state_BHKV.shape)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPSILON)


def _chunks(x_BLHD: Tensor, chunk: int) -> Tensor:
    """[B, L, H, D] -> [N, B * H, C, D], zero-padded to whole chunks."""
    missing = -x_BLHD.shape[1] % chunk
    padded = F.pad(x_BLHD, (0, 0, 0, 0, 0, missing)) if missing else x_BLHD
    chunked_BNCHD = padded.reshape(padded.shape[0], -1, chunk, *padded.shape[2:])
    return chunked_BNCHD.permute(1, 0, 3, 2, 4).flatten(1, 2).contiguous()


def recurrent_delta_rule(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **_: Any) -> Tensor:
    """The definition, token by token, queries and keys normalised: what fast paths are compared with."""
    heads = value.shape[2]
    query, key = (_unit(x).repeat_interleave(heads // x.shape[2], dim=2) for x in (query, key))
    state = value.new_zeros(value.shape[0], heads, key.shape[-1], value.shape[-1])
    outputs = []
    for token in range(value.shape[1]):
        k, v, q = key[:, token, :, :, None], value[:, token, :, None, :], query[:, token, :, :, None]
        state = state * g[:, token, :, None, None].exp()
        state = state + beta[:, token, :, None, None] * k * (v - (state * k).sum(-2, keepdim=True))
        outputs.append((state * q).sum(-2) * query.shape[-1] ** -0.5)
    return torch.stack(outputs, dim=1)


@dataclass(frozen=True)
class RuleCheck:
    """Largest errors of a fast path against the definition, relative to the largest value."""

    forward: float
    gradient: float


def check_rule(rule: Rule, device: torch.device, dtype: torch.dtype, tokens: int = 150, width: int = 64) -> RuleCheck:
    """Run a rule and its backward on a small input and compare both with the definition in float64.

    Args:
        tokens: length; more than two chunks, and no whole number of them.
        width: of keys and values; the model's own where kernels are compiled for it.

    Raises:
        CheckError: an output or a gradient is further off than rounding of `dtype` explains.
    """
    generator = torch.Generator().manual_seed(0)
    heads = 4
    shapes = ((1, tokens, heads // 2, width), (1, tokens, heads // 2, width), (1, tokens, heads, width))
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    tensors.append(-F.softplus(torch.randn(1, tokens, heads, generator=generator, dtype=torch.float64)))
    tensors.append(torch.randn(1, tokens, heads, generator=generator, dtype=torch.float64).sigmoid())
    weight = torch.randn(1, tokens, heads, width, generator=generator, dtype=torch.float64)
    # Both paths get the rounded inputs: only the arithmetic is compared. Decay stays float32, as in the model.
    kinds = (dtype, dtype, dtype, torch.float32, dtype)
    rounded = [x.to(kind) for x, kind in zip(tensors, kinds, strict=True)]
    exact = [x.double().requires_grad_() for x in rounded]
    expected = recurrent_delta_rule(*exact)
    expected_gradients = torch.autograd.grad((expected * weight).sum(), exact)
    fast = [x.to(device).requires_grad_() for x in rounded]
    q, k, v, g, beta = fast
    repeated = [x.repeat_interleave(2, dim=2) for x in (q, k)]
    out, _ = rule(*repeated, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True, output_final_state=False)
    gradients = torch.autograd.grad((out.double() * weight.to(device)).sum(), fast)
    found = RuleCheck(
        _relative(out, expected), max(_relative(a, b) for a, b in zip(gradients, expected_gradients, strict=True))
    )
    limit = 1e-3 if dtype in (torch.float32, torch.float64) else 5e-2
    if not (found.forward < limit and found.gradient < limit):
        raise CheckError(
            f"the delta rule on {device} is wrong: outputs off by {found.forward:.2g}, gradients by "
            f"{found.gradient:.2g} of the largest value (at most {limit:g})",
            "train with --set compute.delta_rule=chunked",
        )
    return found


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double().cpu() - expected.detach()).abs().max() / expected.detach().abs().max())


def fla_installed() -> bool:
    """Whether flash-linear-attention can be imported."""
    return importlib.util.find_spec("fla") is not None


def triton_is_wrong(version: str, capability: tuple[int, int]) -> bool:
    """Whether flash-linear-attention's gradients are known to be wrong with this Triton on this GPU.

    Args:
        version: Triton's version, for example ``3.6.0``; a suffix is ignored.
        capability: the GPU's compute capability.
    """
    digits = version.split("+")[0].split(".")[:3]
    numbers = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in digits)
    return capability >= HOPPER and WRONG_TRITON[0] <= (*numbers, 0, 0)[:3] <= WRONG_TRITON[1]


class DeltaRule:
    """Which implementation the DeltaNet layers of this process use; installed into transformers' module.

    `auto` is our Triton kernels on a GPU that has Triton, and the chunked rule elsewhere.

    Args:
        name: the setting.
        device: where the model lies.

    Raises:
        MissingExtraError: `triton` or `fla` where they cannot run.
        UsageError: `fla` with a Triton whose gradients are known to be wrong.
    """

    def __init__(self, name: RuleName, device: torch.device) -> None:
        usable = triton_usable(device)
        self.name: RuleName = ("triton" if usable else "chunked") if name == "auto" else name
        if name == "triton" and not usable:
            raise MissingExtraError(
                f"delta_rule=triton needs a GPU and Triton (device {device})", "use --set compute.delta_rule=auto"
            )
        if name == "fla":
            self._require_fla(device)

    @staticmethod
    def _require_fla(device: torch.device) -> None:
        if device.type != "cuda" or not fla_installed():
            raise MissingExtraError(
                f"delta_rule=fla needs a GPU and flash-linear-attention (device {device})",
                "use --set compute.delta_rule=auto",
            )
        version = importlib.metadata.version("triton")
        if triton_is_wrong(version, torch.cuda.get_device_capability(device)):
            raise UsageError(
                f"flash-linear-attention's gradients are known to be wrong on this GPU with Triton {version} "
                "(3.4.0 to 3.7.0)",
                "use --set compute.delta_rule=auto, or another Triton",
            )

    def install(self) -> DeltaRule:
        """Make the layers of transformers' Qwen3.5 call this rule."""
        from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

        found: Any = modeling.torch_chunk_gated_delta_rule
        self._library: Rule = found.library if isinstance(found, _Installed) else found
        modeling.torch_chunk_gated_delta_rule = _Installed(self, self._library)
        return self

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        """One layer's call."""
        if self.name == "fla":
            # Its kernels take no autocast: half-precision inputs, as they come from the layer.
            return self._library(query, key, value, **options)
        if self.name == "triton":
            from stateplay_rl.reward_model.delta_triton import triton_delta_rule

            return triton_delta_rule(query, key, value, **options)
        return chunked_delta_rule(query, key, value, **options)


@dataclass(frozen=True)
class _Installed:
    """The function that stands in transformers' module; it remembers what stood there before."""

    rule: DeltaRule
    library: Rule

    def __call__(self, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        return self.rule(*arguments, **options)
