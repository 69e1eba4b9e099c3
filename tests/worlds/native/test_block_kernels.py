"""A block's kernels: Triton's against the plain formulas, those against autograd, and a whole world with them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stateplay_rl.worlds.native import block_operators, text_attention
from stateplay_rl.worlds.native.block_formulas import Modulation, gelu
from stateplay_rl.worlds.native.block_passes import add, add_and_norm, head_rows
from stateplay_rl.worlds.native.block_products import three_products
from tests.worlds.tiny import SLOTS, tiny_inputs, tiny_world

GPU = torch.cuda.device_count() > 0
DEVICE = torch.device("cuda" if GPU else "cpu")
runs_kernels = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None or not (GPU or os.environ.get("TRITON_INTERPRET") == "1"),
        reason="needs a GPU, or Triton with TRITON_INTERPRET=1",
    ),
]
BATCH, TOKENS, WIDTH, HEADS = 2, 23, 48, 2
# How a block calls `add_and_norm`, in its order: update for a whole slot or of full size, then the settings.
CALLS: tuple[tuple[bool, dict[str, Any]], ...] = (
    (True, {"scale": 1}),
    (False, {"gate": 2, "affine": True}),
    (False, {}),
    (False, {"gate_1": True, "scale": 4}),
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def call_of(per_slot: bool, settings: dict[str, Any], kernels: bool) -> tuple[Callable[[], Any], list[Tensor]]:
    """A call, and the tensors that it has gradients for."""
    base = drawn(BATCH, SLOTS, TOKENS, WIDTH).requires_grad_()
    update = drawn(BATCH, SLOTS, WIDTH, seed=1) if per_slot else drawn(*base.shape, seed=1).requires_grad_()
    modulation = Modulation.of(drawn(1, 6, WIDTH, seed=2), drawn(BATCH, SLOTS, 6, WIDTH, seed=3), kernels)
    options = {name: value for name, value in settings.items() if name in ("gate", "scale")}
    if settings.get("gate_1"):
        options["gate_1"] = torch.tensor([0.7])
    if settings.get("affine"):
        options |= {"weight_D": drawn(WIDTH, seed=4), "bias_D": drawn(WIDTH, seed=5)}
    leaves = [base] if per_slot else [base, update]
    return lambda: add_and_norm(base, update, modulation, 1e-6, **options), leaves


@pytest.mark.parametrize(("per_slot", "settings"), CALLS)
def test_the_gradient_of_sum_and_norm_is_that_of_the_formulas(per_slot: bool, settings: dict[str, Any]) -> None:
    found = []
    for kernels in (False, True):
        call, leaves = call_of(per_slot, settings, kernels)
        hidden, normed = call()
        found.append((hidden, normed, *torch.autograd.grad(hidden.sin().sum() + normed.cos().sum(), leaves)))
    for right, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, right)


def test_the_gradient_of_a_gated_sum() -> None:
    found = []
    for kernels in (False, True):
        base, update = (drawn(BATCH, SLOTS, TOKENS, WIDTH, seed=n).requires_grad_() for n in (0, 1))
        modulation = Modulation.of(drawn(1, 6, WIDTH, seed=2), drawn(BATCH, SLOTS, 6, WIDTH, seed=3), kernels)
        out = add(base, update, modulation, gate=5)
        found.append((out, *torch.autograd.grad(out.sin().sum(), [base, update])))
    for right, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, right)


@pytest.mark.parametrize("turned", [True, False])
def test_the_gradient_of_a_heads_rows(turned: bool) -> None:
    rotary = (drawn(TOKENS, WIDTH // HEADS, seed=1), drawn(TOKENS, WIDTH // HEADS, seed=2)) if turned else None
    found = []
    for kernels in (False, True):
        x = drawn(BATCH, TOKENS, WIDTH).requires_grad_()
        out = head_rows(x, drawn(WIDTH, seed=3), 1e-6, HEADS, rotary, kernels=kernels)
        assert out.shape == (BATCH, HEADS, TOKENS, WIDTH // HEADS)
        found.append((out, *torch.autograd.grad(out.sin().sum(), x)))
    for right, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, right)


def test_three_products_are_three_linears_with_one_gradient() -> None:
    torch.manual_seed(0)
    linears = [nn.Linear(6, wide).requires_grad_(False) for wide in (4, 6, 8)]
    x = torch.randn(2, 5, 6, requires_grad=True)
    found, expected = three_products(x, *linears), tuple(linear(x) for linear in linears)
    weights = [torch.randn_like(y) for y in expected]
    gradients = []
    for outputs in (found, expected):
        gradients += torch.autograd.grad(sum((y * w).sum() for y, w in zip(outputs, weights, strict=True)), x)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    torch.testing.assert_close(*gradients)
    torch.library.opcheck(
        torch.ops.stateplay_rl.three_products, (x, *(y.weight for y in linears), *(y.bias for y in linears))
    )
    linears[1].requires_grad_(True)
    with pytest.raises(RuntimeError, match="no gradient for weights"):
        three_products(x, *linears)


def test_gelu_is_the_tanh_form() -> None:
    x = torch.linspace(-12, 12, 4001, dtype=torch.float32)
    torch.testing.assert_close(gelu(x), F.gelu(x, approximate="tanh"), rtol=1e-5, atol=1e-6)
    assert gelu(x.bfloat16()).dtype == torch.bfloat16


def text(lengths: tuple[int, ...], tokens: int = 70, queries: int = 40, width: int = 16) -> tuple[Tensor, ...]:
    """q, k, v with padding's rows all equal, and the prompts' lengths."""
    q, k, v = (drawn(len(lengths), HEADS, n, width, seed=s) for s, n in enumerate((queries, tokens, tokens)))
    for row, length in enumerate(lengths):
        for x in (k, v):
            x[row, :, length:] = x[row, :, -1:].clone()
    return q.requires_grad_(), k, v, torch.tensor(lengths, dtype=torch.int32)


@pytest.mark.parametrize("lengths", [(20, 70), (0, 65)])
def test_counting_the_padding_is_attending_to_it(lengths: tuple[int, ...]) -> None:
    q, k, v, lengths_B = text(lengths)
    out = text_attention.text_attention(q, k, v, lengths_B)
    right = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(out, right)
    for ours, theirs in zip(*(torch.autograd.grad(x.sin().sum(), q) for x in (out, right)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_trained_weights_and_texts_are_refused() -> None:
    q, k, v, lengths_B = text((20,))
    with pytest.raises(RuntimeError, match="no gradient for keys and values"):
        text_attention.text_attention(q, k.requires_grad_(), v, lengths_B).sum().backward()
    x, weight = drawn(BATCH, TOKENS, WIDTH).requires_grad_(), drawn(WIDTH).requires_grad_()
    with pytest.raises(RuntimeError, match="no gradient for weights"):
        head_rows(x, weight, 1e-6, HEADS, kernels=True).sum().backward()


@pytest.mark.parametrize("mode", ["transition", "coupling"])
@pytest.mark.parametrize("checkpointing", ["off", "full"])
def test_a_world_computes_the_same_with_them(mode: Any, checkpointing: Any) -> None:
    found = []
    for kernels in (False, True):
        world = tiny_world()
        groups = world.set_mode(mode)
        world.transformer.use_kernels(kernels)
        world.transformer.checkpointing = checkpointing
        conditions = world.encode_conditions(tiny_inputs(2))
        with world.policies.live_window():
            velocity = world.velocity(drawn(2, 4, SLOTS, 4, 4), torch.tensor([0.5, 0.8]), conditions).velocity_BCfHW
            velocity.square().sum().backward()
        grads = [p.grad for g in groups for p in g.parameters if p.grad is not None]
        found.append((velocity.detach(), torch.cat([g.flatten() for g in grads])))
    for right, ours in zip(*found, strict=True):
        assert float((ours - right).norm() / right.norm()) < 1e-6


def test_a_block_whose_weights_train_goes_the_plain_way() -> None:
    found = []
    for kernels in (False, True):
        world = tiny_world()
        (group, *_) = world.set_mode("full")
        world.transformer.use_kernels(kernels)
        conditions = world.encode_conditions(tiny_inputs(1))
        with world.policies.live_window():
            world.velocity(drawn(1, 4, SLOTS, 4, 4), torch.tensor([0.5]), conditions).velocity_BCfHW.sum().backward()
        found.append([p.grad for p in group.parameters])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True) if a is not None)


def test_a_recomputed_block_keeps_attention() -> None:
    """Forward twice, attention once: what it returned is kept."""
    calls = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func.overloadpacket)
            return func(*args, **(kwargs or {}))

    world = tiny_world()
    world.set_mode("transition")
    conditions = world.encode_conditions(tiny_inputs(1))
    counts = {}
    for checkpointing in ("off", "full"):
        world.transformer.checkpointing = checkpointing  # type: ignore[assignment]
        calls.clear()
        with world.policies.live_window(), Count():
            world.velocity(drawn(1, 4, SLOTS, 4, 4), torch.tensor([0.5]), conditions).velocity_BCfHW.sum().backward()
        counts[checkpointing] = [
            sum(call is op for call in calls)
            for op in (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, torch.ops.aten.addmm)
        ]
    assert counts["full"][0] == counts["off"][0] > 0
    assert counts["full"][1] > counts["off"][1]


# -- Triton -----------------------------------------------------------------------------------------------------


def on(device: torch.device, tensors: Any) -> Any:
    return [x.to(device) if isinstance(x, Tensor) else x for x in tensors]


def check_kernel(launch: Callable[..., Any], right: Callable[..., Any], arguments: Any) -> None:
    expected = right(*arguments)
    found = launch(*on(DEVICE, arguments))
    pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


kernels = [pytest.param(None, marks=runs_kernels)]


@pytest.mark.parametrize("_", kernels)
@pytest.mark.parametrize("per_slot,gate,one,scale,affine,norm", [
    (True, -1, False, 1, False, True),
    (False, 2, False, -1, True, True),
    (False, -1, False, -1, False, True),
    (False, -1, True, 4, False, True),
    (False, 5, False, -1, False, False),
])  # fmt: skip
def test_kernels_of_sum_and_norm(
    per_slot: bool, gate: int, one: bool, scale: int, affine: bool, norm: bool, _: None
) -> None:
    base, hidden = drawn(BATCH, SLOTS, TOKENS, WIDTH), drawn(BATCH, SLOTS, TOKENS, WIDTH, seed=9)
    update = drawn(BATCH, SLOTS, WIDTH, seed=1) if per_slot else drawn(*base.shape, seed=1)
    table, slots = drawn(1, 6, WIDTH, seed=2), drawn(BATCH, SLOTS, 6, WIDTH, seed=3)
    gate_1 = torch.tensor([0.7]) if one else None
    weight, bias = (drawn(WIDTH, seed=4), drawn(WIDTH, seed=5)) if affine else (None, None)
    check_kernel(
        block_operators.launch_residual_norm,
        torch.ops.stateplay_rl.residual_norm,
        (base, update, table, slots, gate_1, weight, bias, gate, scale, 1e-6, norm),
    )
    d_normed = drawn(*base.shape, seed=6) if norm else torch.empty(0)
    two = not per_slot and (gate >= 0 or one)
    check_kernel(
        block_operators.launch_residual_norm_backward,
        torch.ops.stateplay_rl.residual_norm_backward,
        (base, d_normed, hidden, table, slots, gate_1, weight, gate, scale, 1e-6, norm, two),
    )


@pytest.mark.parametrize("_", kernels)
@pytest.mark.parametrize("turned", [True, False])
def test_kernels_of_a_heads_rows(turned: bool, _: None) -> None:
    x, weight = drawn(BATCH, TOKENS, WIDTH), drawn(WIDTH, seed=1)
    rotary = [drawn(TOKENS, WIDTH // HEADS, seed=n) if turned else None for n in (2, 3)]
    ops = torch.ops.stateplay_rl
    check_kernel(block_operators.launch_head_rows, ops.head_rows, (x, weight, *rotary, 1e-6, HEADS))
    d_out = drawn(BATCH, TOKENS, HEADS, WIDTH // HEADS, seed=4)
    check_kernel(block_operators.launch_head_rows_backward, ops.head_rows_backward, (d_out, x, weight, *rotary, 1e-6))


@pytest.mark.parametrize("_", kernels)
@pytest.mark.parametrize(("lengths", "width"), [((20, 70), 16), ((0, 65), 24), ((130,), 128)])
def test_kernels_of_text_attention(lengths: tuple[int, ...], width: int, _: None) -> None:
    q, k, v, lengths_B = text(lengths, tokens=max(70, *lengths), width=width)
    q = q.detach()
    out, lse = torch.ops.stateplay_rl.text_attention(q, k, v, lengths_B)
    found, lse_2 = text_attention.launch_forward(*on(DEVICE, (q, k, v, lengths_B)))
    torch.testing.assert_close(found.cpu(), out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse_2.cpu() * torch.log(torch.tensor(2.0)), lse, rtol=1e-4, atol=1e-5)
    right = torch.ops.stateplay_rl.text_attention_backward(q, k, v, lengths_B, out, lse, out)
    ours = text_attention.launch_backward(*on(DEVICE, (q, k, v, lengths_B, out, lse_2, out)))
    torch.testing.assert_close(ours.cpu(), right, rtol=1e-4, atol=1e-5)
