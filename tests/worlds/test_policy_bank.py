"""live, old and reference: switching, guards, hashes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stateplay_rl.errors import CorruptionError, InputError, UsageError
from stateplay_rl.worlds.policy_bank import PolicyBank, sha256_tensors


def make() -> tuple[nn.Linear, PolicyBank]:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    return layer, PolicyBank({"weight": layer.weight}, [layer.bias])


def test_switching_moves_pointers_and_comes_back() -> None:
    layer, bank = make()
    live = layer.weight.data_ptr()
    with torch.no_grad():
        layer.weight.add_(1.0)
    with bank.use("old"):
        assert layer.weight.data_ptr() != live
        assert bank.current == "old"
        with bank.use("reference"):
            assert bank.current == "reference"
        assert bank.current == "old"
    assert layer.weight.data_ptr() == live
    assert bank.distance("live", "old") == pytest.approx(6**0.5)
    assert bank.distance("old", "reference") == 0.0


def test_switching_under_inference_mode_leaves_a_trainable_parameter() -> None:
    layer, bank = make()
    with torch.inference_mode(), bank.use("old"):
        layer(torch.ones(1, 3))
    with bank.live_window():
        layer(torch.ones(1, 3)).sum().backward()
    assert layer.weight.grad is not None


def test_an_exception_inside_use_restores_live() -> None:
    _, bank = make()
    with pytest.raises(KeyError), bank.use("old"):
        raise KeyError
    assert bank.current == "live"


def test_the_optimizer_moves_live_only() -> None:
    layer, bank = make()
    optimizer = torch.optim.AdamW([layer.weight], lr=0.1)
    before = bank.sha256("old")
    with bank.live_window():
        layer(torch.ones(1, 3)).sum().backward()
    with bank.use("old"):
        pass
    optimizer.step()
    assert bank.sha256("old") == before == bank.sha256("reference")
    assert bank.sha256("live") != before


def test_every_switch_inside_a_live_window_raises() -> None:
    _, bank = make()
    with bank.live_window():
        for action in (
            lambda: bank.use("old").__enter__(),
            lambda: bank.use("live").__enter__(),
            lambda: bank.load("old", bank.state("live")),
            lambda: bank.update_old(0.5),
        ):
            with pytest.raises(RuntimeError, match="open live window"):
                action()
    with bank.use("old"), pytest.raises(RuntimeError, match="live only"), bank.live_window():
        pass


def test_recomputation_of_a_checkpointed_block_cannot_see_another_policy() -> None:
    """The block runs again in the backward pass; a switch there raises instead of mixing policies."""
    layer, bank = make()
    calls = []

    def block(x: torch.Tensor) -> torch.Tensor:
        calls.append(bank.current)
        if len(calls) == 2:
            with bank.use("old"):
                return layer(x)
        return layer(x)

    with bank.live_window():
        loss = checkpoint(block, torch.ones(1, 3), use_reentrant=False).sum()
        with pytest.raises(RuntimeError, match="open live window"):
            loss.backward()
    assert calls == ["live", "live"]


def test_a_forward_with_gradients_needs_a_window() -> None:
    _, bank = make()
    with pytest.raises(RuntimeError, match="outside a live_window"):
        bank.check_forward()
    with torch.no_grad():
        bank.check_forward()
    with bank.live_window():
        bank.check_forward()
    PolicyBank({}).check_forward()


def test_the_reference_is_immutable_and_checked() -> None:
    layer, bank = make()
    with pytest.raises(UsageError, match="immutable"):
        bank.load("reference", bank.state("live"))
    bank.verify_reference()
    with bank.use("reference"), torch.no_grad():
        layer.weight.mul_(2.0)
    with pytest.raises(CorruptionError, match="reference policy changed"):
        bank.verify_reference()


def test_states_are_copies_and_load_in_place() -> None:
    layer, bank = make()
    state = bank.state("live")
    state["weight"] += 1.0
    assert bank.distance("live", "reference") == 0.0
    pointer = layer.weight.data_ptr()
    bank.load("live", state)
    assert layer.weight.data_ptr() == pointer
    assert torch.equal(layer.weight.detach(), state["weight"])
    assert bank.sha256("live") == sha256_tensors(state)
    with pytest.raises(InputError, match="weight is missing; x is unexpected"):
        bank.load("old", {"x": torch.zeros(1)})
    with pytest.raises(InputError, match=r"\[1\] instead of \[2, 3\]"):
        bank.load("old", {"weight": torch.zeros(1)})


def test_update_old_weighs_old() -> None:
    """old = 0.25 * 0 + 0.75 * 4 = 3, in place."""
    parameter = nn.Parameter(torch.zeros(2))
    bank = PolicyBank({"p": parameter})
    with torch.no_grad():
        parameter.fill_(4.0)
    bank.update_old(0.25)
    assert bank.state("old")["p"].tolist() == [3.0, 3.0]
    assert bank.state("reference")["p"].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="outside"):
        bank.update_old(1.5)


def test_flags_and_dtypes_are_asserted() -> None:
    layer, bank = make()
    layer.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="lost requires_grad"), bank.use("old"):
        pass
    layer, bank = make()
    layer.bias.requires_grad_(True)
    with pytest.raises(ValueError, match="frozen parameter"), bank.use("old"):
        pass
    with pytest.raises(ValueError, match="must be float32"):
        PolicyBank({"p": nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))})
    layer, bank = make()
    layer.double()
    with pytest.raises(RuntimeError, match="replaced outside"), bank.use("old"):
        pass


def test_hashes_see_names_shapes_and_values() -> None:
    value = torch.arange(4.0)
    hashes = {
        sha256_tensors(t) for t in ({"a": value}, {"b": value}, {"a": value.reshape(2, 2)}, {"a": value + 1e-6}, {})
    }
    assert len(hashes) == 5
