"""The Triton kernels against plain PyTorch: on a GPU, or anywhere in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb_vision

from stateplay_rl.errors import CheckError, MissingExtraError, UsageError
from stateplay_rl.reward_model import few_queries, fused
from stateplay_rl.reward_model.delta_rule import check_rule, chunked_delta_rule
from stateplay_rl.reward_model.delta_triton import triton_delta_rule
from stateplay_rl.reward_model.few_queries import attend
from stateplay_rl.reward_model.fused import check_fused, resolve_fused, rotate_
from tests.reward_model.kernel_runs import CPU, DEVICE, runs_kernels

kernels = [pytest.param(DEVICE, marks=runs_kernels)]


def inputs(batch: int, tokens: int, key_heads: int, heads: int, k: int, v: int, device: torch.device) -> list[Tensor]:
    """q, k, v, g, beta and a state, float32."""
    draw = torch.Generator().manual_seed(0)
    drawn = [torch.randn(batch, tokens, key_heads, k, generator=draw) for _ in range(2)]
    drawn.append(torch.randn(batch, tokens, heads, v, generator=draw))
    drawn.append(-F.softplus(torch.randn(batch, tokens, heads, generator=draw)))
    drawn.append(torch.randn(batch, tokens, heads, generator=draw).sigmoid())
    drawn.append(torch.randn(batch, heads, k, v, generator=draw))
    return [x.to(device).requires_grad_() for x in drawn]


@pytest.mark.parametrize("device", kernels)
@pytest.mark.parametrize(
    ("sizes", "chunk", "segment"),
    [
        ((2, 80, 1, 2, 16, 32), 32, 64),
        ((1, 130, 2, 2, 32, 16), 64, 64),
        ((1, 5, 2, 4, 16, 16), 16, 16),
        ((1, 64, 1, 1, 16, 16), 64, 1 << 20),
    ],
)
def test_the_delta_rule_and_its_gradients_are_those_of_the_chunked_one(
    sizes: tuple[int, int, int, int, int, int], chunk: int, segment: int, device: torch.device
) -> None:
    """Shared key heads, parts of a chunk, several segments, a state before and behind."""
    tensors = inputs(*sizes, device)
    found = []
    for rule, options in ((triton_delta_rule, {"segment_tokens": segment}), (chunked_delta_rule, {})):
        *qkvgb, state = tensors
        out, last = rule(*qkvgb, chunk, state, True, True, **options)
        assert last is not None
        found.append((out, last, *torch.autograd.grad((out.sin()).sum() + last.cos().sum(), tensors)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("device", kernels)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_kernels_pass_their_own_checks(dtype: torch.dtype, device: torch.device) -> None:
    assert set(check_fused(device, dtype)) == {"norm", "gated_norm", "gated", "convolution", "few_queries"}
    assert check_rule(triton_delta_rule, device, dtype, width=128 if device.type == "cuda" else 16).gradient < 5e-2


@pytest.mark.parametrize("device", kernels)
def test_rotary_positions_are_those_of_the_class(device: torch.device) -> None:
    draw = torch.Generator().manual_seed(0)
    mixed = torch.randn(2, 10, 3 * 3 * 24, generator=draw).to(device)
    rotation = tuple(torch.randn(10, 24, generator=draw).to(device) for _ in range(2))
    q, k, v = mixed.clone().unflatten(-1, (3, 3, -1)).unbind(2)
    expected = (*apply_rotary_pos_emb_vision(q, k, *rotation), v)
    rotate_(mixed, rotation, heads=3)
    for found, wanted in zip(mixed.unflatten(-1, (3, 3, -1)).unbind(2), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself, with plain functions in the kernels' places: all right, then one gradient halved."""
    right = {
        "norm": lambda x, w, e: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + e) * (1 + w),
        "gated_norm": lambda x, z, w, e: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + e) * w * F.silu(z),
        "gated": lambda g, u: F.silu(g) * u,
        "convolution": lambda x, w: F.silu(F.conv1d(F.pad(x.mT, (3, 0)), w[:, None], groups=w.shape[0])).mT,
    }
    for name, function in right.items():
        monkeypatch.setattr(fused, name, function)
    monkeypatch.setattr(few_queries, "_by_kernels", few_queries._plain)
    assert max(check_fused(CPU, torch.float32).values()) < 1e-5
    monkeypatch.setattr(fused, "gated", lambda g, u: F.silu(g) * (u.detach() + 0.5 * (u - u.detach())))
    with pytest.raises(CheckError, match="fused gated"):
        check_fused(CPU, torch.float32)
    monkeypatch.setattr(fused, "gated", right["gated"])
    monkeypatch.setattr(
        few_queries, "_by_kernels", lambda q, k, v, filled, s: few_queries._plain(q, k, v, filled + 1, s)
    )
    with pytest.raises(CheckError, match="fused few_queries"):
        check_fused(CPU, torch.float32)


def test_what_the_kernels_cannot_do_is_refused() -> None:
    q, k, v, g, beta, _ = inputs(1, 4, 1, 1, 24, 16, CPU)
    with pytest.raises(UsageError, match="not 24"):
        triton_delta_rule(q, k, v, g, beta)
    with pytest.raises(UsageError, match="float64"):
        triton_delta_rule(q.double(), k, v, g, beta)
    with pytest.raises(MissingExtraError):
        resolve_fused("triton", CPU)
    assert [resolve_fused(name, CPU) for name in ("auto", "torch")] == [False, False]


@pytest.mark.parametrize(("count", "width"), [(1, 16), (3, 24), (6, 32)])
@pytest.mark.parametrize("filled", [6, 70, 200])
@pytest.mark.parametrize("kernel", [False, pytest.param(True, marks=runs_kernels)])
def test_attention_of_a_few_queries_sees_what_is_filled_and_no_more(
    kernel: bool, filled: int, count: int, width: int
) -> None:
    device = DEVICE if kernel else CPU
    draw = torch.Generator().manual_seed(filled)
    query, keys, values = (
        torch.randn(1, n, m, width, generator=draw).to(device) for n, m in ((6, count), *[(2, 200)] * 2)
    )
    found = attend(query, keys, values, torch.tensor([filled], device=device), 0.3, kernels=kernel)
    mask = torch.ones(count, filled, dtype=torch.bool, device=device).tril(filled - count)
    expected = F.scaled_dot_product_attention(
        query, keys[:, :, :filled], values[:, :, :filled], mask, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(found, expected.transpose(1, 2), rtol=1e-4, atol=1e-5)
