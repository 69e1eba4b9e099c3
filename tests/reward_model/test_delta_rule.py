"""The delta rule against its definition, and which implementation runs when."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stateplay_rl.errors import CheckError, MissingExtraError
from stateplay_rl.reward_model import delta_rule
from stateplay_rl.reward_model.delta_rule import (
    DeltaRule,
    check_rule,
    chunked_delta_rule,
    recurrent_delta_rule,
    triton_is_wrong,
)

CPU = torch.device("cpu")


def inputs(tokens: int, key_heads: int = 2, heads: int = 4, width: int = 8) -> list[Tensor]:
    """Double-precision q, k, v, g, beta."""
    draw = torch.Generator().manual_seed(3)
    shapes = [(1, tokens, key_heads, width)] * 2 + [(1, tokens, heads, width)]
    tensors = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    decay = -F.softplus(torch.randn(1, tokens, heads, generator=draw, dtype=torch.float64))
    beta = torch.randn(1, tokens, heads, generator=draw, dtype=torch.float64).sigmoid()
    return [x.requires_grad_() for x in (*tensors, decay, beta)]


def gradients(out: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    weight = torch.linspace(-1.0, 1.0, out.numel(), dtype=out.dtype).reshape(out.shape)
    return list(torch.autograd.grad((out * weight).sum(), tensors))


@pytest.mark.parametrize("tokens", [1, 15, 16, 40])
def test_chunks_compute_the_definition_and_its_gradients(tokens: int) -> None:
    tensors = inputs(tokens)
    out, state = chunked_delta_rule(*tensors, chunk_size=16, use_qk_l2norm_in_kernel=True)
    expected = recurrent_delta_rule(*tensors)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    assert state is None
    for found, wanted in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


def test_recomputed_segments_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = inputs(40)
    whole, last = chunked_delta_rule(*tensors, chunk_size=8, output_final_state=True)
    expected = gradients(whole, tensors)
    monkeypatch.setattr(delta_rule, "SEGMENT_TOKENS", 16)
    parts, end = chunked_delta_rule(*tensors, chunk_size=8, output_final_state=True)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(end, last, rtol=1e-12, atol=1e-13)
    for found, wanted in zip(gradients(parts, tensors), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


def test_a_sequence_may_be_continued_from_its_state() -> None:
    tensors = [x.detach() for x in inputs(30)]
    whole, last = chunked_delta_rule(*tensors, chunk_size=8, output_final_state=True)
    first, state = chunked_delta_rule(*(x[:, :13] for x in tensors), chunk_size=8, output_final_state=True)
    rest, end = chunked_delta_rule(
        *(x[:, 13:] for x in tensors), chunk_size=8, initial_state=state, output_final_state=True
    )
    torch.testing.assert_close(torch.cat((first, rest), dim=1), whole, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(end, last, rtol=1e-10, atol=1e-12)


def test_it_is_the_rule_of_transformers() -> None:
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    theirs: Any = modeling.torch_chunk_gated_delta_rule
    library = theirs.library if isinstance(theirs, delta_rule._Installed) else theirs
    q, k, v, g, beta = (x.detach().float() for x in inputs(70, key_heads=4))
    expected, _ = library(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
    found, _ = chunked_delta_rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_check_passes_the_right_rule(dtype: torch.dtype) -> None:
    assert check_rule(chunked_delta_rule, CPU, dtype).gradient < 5e-2


def test_the_check_finds_a_wrong_backward() -> None:
    """Right outputs with a gradient that is half of the true one: what a broken kernel looks like."""

    def wrong(*arguments: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        out, state = chunked_delta_rule(*arguments, **options)
        return out.detach() + 0.5 * (out - out.detach()), state

    with pytest.raises(CheckError, match="delta rule"):
        check_rule(wrong, CPU, torch.float32)


@pytest.mark.parametrize(
    ("version", "capability", "wrong"),
    [
        ("3.3.1", (9, 0), False),
        ("3.4.0", (9, 0), True),
        ("3.6.0+git1", (9, 0), True),
        ("3.7.0", (9, 0), True),
        ("3.7.1", (9, 0), False),
        ("3.8", (9, 0), False),
        ("3.6.0", (8, 9), False),
    ],
)
def test_known_wrong_versions(version: str, capability: tuple[int, int], wrong: bool) -> None:
    assert triton_is_wrong(version, capability) is wrong


def test_without_a_gpu_the_chunked_rule_runs_and_the_others_are_refused() -> None:
    rule = DeltaRule("auto", CPU)
    q, k, v, g, beta = (x.detach().float() for x in inputs(5))
    out, _ = rule(q, k, v, g=g, beta=beta)
    assert out.shape == (1, 5, 4, 8)
    assert rule.name == "chunked"
    for name in ("fla", "triton"):
        with pytest.raises(MissingExtraError):
            DeltaRule(name, CPU)  # type: ignore[arg-type]
