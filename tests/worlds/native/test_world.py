"""`NativeWorld` behind the `World` protocol, on the tiny random world."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from stateplay_rl.errors import InputError, UsageError
from stateplay_rl.worlds.base import ParameterMode, StateSequence, World
from stateplay_rl.worlds.native.keymap import from_training_names
from stateplay_rl.worlds.native.world import NativeWorld
from tests.worlds.tiny import FRAMES, SLOTS, tiny_inputs, tiny_world


def velocity_of(world: NativeWorld, rows: int = 2, sigma: float = 0.5) -> torch.Tensor:
    conditions = world.encode_conditions(tiny_inputs(rows))
    latents = torch.randn(rows, 4, SLOTS, 4, 4, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return world.velocity(latents, torch.full((rows,), sigma), conditions).velocity_BCfHW


def test_it_is_a_world() -> None:
    world: World = tiny_world()
    assert world.spec.latent_frames(FRAMES) == SLOTS
    assert len(world.sha256) == 64


def test_conditions_have_the_documented_shapes() -> None:
    world = tiny_world()
    inputs = tiny_inputs(3)
    conditions = world.encode_conditions(inputs)
    assert conditions.condition_ids == tuple(item.condition_id for item in inputs)
    assert conditions.first_latent_BC1HW.shape == (3, 4, 1, 4, 4)
    assert conditions.text_BLD.shape == (3, 16, 16)
    # 9 held rows in windows of 3 give 3 bins: each bin is its window's row.
    assert torch.equal(conditions.action_bins_BfK[0], torch.from_numpy(inputs[0].held_actions_RK[::3].copy()))


def test_a_condition_does_not_depend_on_its_batch() -> None:
    world = tiny_world()
    together = world.encode_conditions(tiny_inputs(3))
    alone = world.encode_conditions(tiny_inputs(3)[2:])
    assert torch.equal(alone.first_latent_BC1HW[0], together.first_latent_BC1HW[2])
    assert torch.equal(alone.text_BLD[0], together.text_BLD[2])


def test_the_first_frame_is_slot_0_of_its_video() -> None:
    world = tiny_world()
    item = tiny_inputs(1)[0]
    video = np.repeat(item.first_frame_hwc[None], FRAMES, axis=0)
    first = world.encode_conditions([item]).first_latent_BC1HW[0]
    torch.testing.assert_close(world.encode_video(video)[:, :1], first, rtol=0, atol=1e-5)


def test_bad_conditions_are_refused_by_name() -> None:
    world = tiny_world()
    good, other = tiny_inputs(2)
    with pytest.raises(InputError, match="condition-0-1 has 4 latent slots"):
        world.encode_conditions([good, dataclasses.replace(other, latent_frames=4)])
    with pytest.raises(InputError, match=r"condition-0-0: first frame is uint8 \[16, 32, 3\]"):
        world.encode_conditions([dataclasses.replace(good, first_frame_hwc=good.first_frame_hwc[:16])])
    with pytest.raises(InputError, match=r"condition-0-0: actions of shape \[9, 10\]"):
        world.encode_conditions([dataclasses.replace(good, held_actions_RK=good.held_actions_RK[:, :10])])
    with pytest.raises(InputError, match="no conditions"):
        world.encode_conditions([])


def test_slot_0_of_the_latents_does_not_matter() -> None:
    world = tiny_world()
    conditions = world.encode_conditions(tiny_inputs(1))
    latents = torch.randn(1, 4, SLOTS, 4, 4)
    changed = latents.clone()
    changed[:, :, 0] = 9.0
    with torch.no_grad():
        left, right = (world.velocity(x, torch.tensor([0.5]), conditions).velocity_BCfHW for x in (latents, changed))
    assert torch.equal(left, right)


def test_given_states_and_rebuilt_states_agree() -> None:
    world = tiny_world()
    conditions = world.encode_conditions(tiny_inputs(2))
    latents, sigma_B = torch.randn(2, 4, SLOTS, 4, 4), torch.tensor([0.3, 0.9])
    with torch.no_grad():
        states = world.states(conditions)
        plain = StateSequence(states.low_BfMS, states.tokens_BNC)
        expected = world.velocity(latents, sigma_B, conditions).velocity_BCfHW
        for given in (states, plain):
            assert torch.equal(world.velocity(latents, sigma_B, conditions, given).velocity_BCfHW, expected)


def test_chosen_rows_of_states_carry_their_text_along() -> None:
    """Rows 1, 0, 1 of two conditions with other prompts: as if the states of those rows had been computed."""
    world = tiny_world()
    conditions = world.encode_conditions(tiny_inputs(2))
    rows = [1, 0, 1]
    latents, sigma_B = torch.randn(3, 4, SLOTS, 4, 4), torch.tensor([0.3, 0.9, 0.5])
    with torch.no_grad():
        states = world.states(conditions)
        expected = world.velocity(latents, sigma_B, conditions.select(rows)).velocity_BCfHW
        plain = StateSequence(states.low_BfMS, states.tokens_BNC)
        assert isinstance(states.select(rows), type(states))
        for given in (states.select(rows), plain.select(rows)):
            found = world.velocity(latents, sigma_B, conditions.select(rows), given).velocity_BCfHW
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_gradients_flow_through_chosen_rows() -> None:
    low_BfMS = torch.randn(3, 2, 2, 4, requires_grad=True)
    StateSequence(low_BfMS, torch.randn(3, 4, 5)).select([2, 2]).low_BfMS.sum().backward()
    assert low_BfMS.grad is not None
    assert low_BfMS.grad[:, 0, 0, 0].tolist() == [0.0, 0.0, 2.0]


def test_one_sigma_per_sample_and_a_batch_equals_its_rows() -> None:
    world = tiny_world()
    conditions = world.encode_conditions(tiny_inputs(2))
    latents, sigma_B = torch.randn(2, 4, SLOTS, 4, 4), torch.tensor([0.2, 0.8])
    with torch.no_grad():
        both = world.velocity(latents, sigma_B, conditions).velocity_BCfHW
        for row in range(2):
            alone = world.velocity(
                latents[row : row + 1], sigma_B[row : row + 1], conditions.select([row])
            ).velocity_BCfHW
            torch.testing.assert_close(alone[0], both[row], rtol=1e-4, atol=1e-5)


def test_transition_codes_and_logits() -> None:
    world = tiny_world()
    conditions = world.encode_conditions(tiny_inputs(2))
    with torch.no_grad():
        logits = world.transition_logits(world.states(conditions), conditions)
    codes = world.transition_codes(torch.randn(2, 4, SLOTS, 4, 4))
    assert logits.shape == (2, SLOTS - 1, 4, 512)
    assert codes.shape == (2, SLOTS - 1, 4)
    assert codes.dtype == torch.int64
    assert 0 <= int(codes.min()) <= int(codes.max()) < 512


@pytest.mark.parametrize(
    ("mode", "groups"),
    [
        ("transition", {"transition"}),
        ("coupling", {"coupling_lora"}),
        ("joint", {"transition", "coupling_lora"}),
        ("full", {"backbone", "coupling", "transition", "state", "predictor"}),
    ],
)
def test_a_mode_trains_its_groups_and_nothing_else(mode: ParameterMode, groups: set[str]) -> None:
    world = tiny_world()
    found = world.set_mode(mode)
    assert {group.name for group in found} == groups
    conditions = world.encode_conditions(tiny_inputs(1))
    with world.policies.live_window():
        states = world.states(conditions)
        output = world.velocity(torch.randn(1, 4, SLOTS, 4, 4), torch.tensor([0.5]), conditions, states)
        loss = output.velocity_BCfHW[:, :, 1:].square().mean()
        if mode != "coupling":
            loss = loss + world.transition_logits(states, conditions).square().mean()
        loss.backward()
    trained = {name for group in found for name in group.names}
    for name, parameter in world.transformer.named_parameters():
        assert parameter.requires_grad == (name in trained)
        # LoRA's A has no gradient while its B is 0.
        if name in trained and ".lora_A." not in name:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0 or name.endswith("k.bias"), name
    assert not world.transformer.training


def test_setting_a_mode_does_not_change_the_function() -> None:
    before = velocity_of(tiny_world())
    for mode in ("transition", "coupling", "joint", "full"):
        world = tiny_world()
        world.set_mode(mode)
        torch.testing.assert_close(velocity_of(world), before, rtol=0, atol=1e-6)


def test_policies_change_the_velocity_and_come_back() -> None:
    world = tiny_world()
    world.set_mode("transition")
    before = velocity_of(world)
    state = {name: value + 0.1 for name, value in world.policies.state("live").items()}
    world.policies.load("live", state)
    assert not torch.allclose(velocity_of(world), before)
    with world.policies.use("reference"):
        assert torch.equal(velocity_of(world), before)


def test_a_forward_with_gradients_needs_a_live_window() -> None:
    world = tiny_world()
    world.set_mode("transition")
    conditions = world.encode_conditions(tiny_inputs(1))
    for forward in (
        lambda: world.states(conditions),
        lambda: world.velocity(torch.zeros(1, 4, SLOTS, 4, 4), torch.tensor([0.5]), conditions),
    ):
        with pytest.raises(RuntimeError, match="outside a live_window"):
            forward()


@pytest.mark.parametrize("mode", ["transition", "coupling", "joint", "full"])
def test_an_exported_policy_is_the_policy(mode: ParameterMode) -> None:
    """Applied to the base weights it gives the trained world's velocity, LoRA included."""
    world = tiny_world()
    world.set_mode(mode)
    draws = torch.Generator().manual_seed(5)
    noise = {n: 0.05 * torch.randn(v.shape, generator=draws) for n, v in world.policies.state("live").items()}
    world.policies.load("live", {n: v + noise[n] for n, v in world.policies.state("live").items()})
    exported = world.export_policy("live")
    assert not from_training_names(exported).unmatched
    assert all(value.dtype == torch.float32 for value in exported.values())
    assert world.policies.current == "live"
    again = tiny_world()
    base = velocity_of(again)
    again.apply_policy(exported, "policy")
    assert not torch.allclose(velocity_of(again), base)
    torch.testing.assert_close(velocity_of(again), velocity_of(world), rtol=1e-4, atol=1e-5)
    assert torch.equal(world.export_policy("old")[min(exported)], world.export_policy("reference")[min(exported)])


def test_an_exported_policy_holds_the_trained_weights_only() -> None:
    world = tiny_world()
    world.set_mode("joint")
    names = set(world.export_policy("live"))
    assert "blocks.1.latent_state_attention.out.weight" in names
    assert "latent_state_rollout.transition.delta.weight" in names
    assert not any(
        "self_attn" in n or "gate" in n or "lora" in n or n.endswith("attention.q.bias")
        for n in names
        if n.startswith("blocks.")
    )


def test_foreign_policies_and_late_calls_are_refused() -> None:
    world = tiny_world()
    with pytest.raises(UsageError, match="no parameter mode"):
        world.export_policy("live")
    with pytest.raises(InputError, match=r"first nonsense\.weight"):
        world.apply_policy({"nonsense.weight": torch.zeros(1)}, "policy")
    with pytest.raises(InputError, match=r"latent_state_rollout\.transition\.delta\.bias"):
        world.apply_policy({"latent_state_rollout.transition.delta.bias": torch.zeros(3)}, "policy")
    world.set_mode("transition")
    with pytest.raises(UsageError, match="before the parameter mode"):
        world.apply_policy({}, "policy")
    world.set_mode("full")
    world.policies.load("live", {n: v + 1 for n, v in world.policies.state("live").items()})
    with pytest.raises(UsageError, match="already in use"):
        world.set_mode("transition")


def test_bfloat16_computes_with_float32_masters(tmp_path: Path) -> None:
    exact = velocity_of(tiny_world())
    world = tiny_world(compute_dtype=torch.bfloat16)
    world.set_mode("full")
    assert all(p.dtype == torch.float32 for p in world.transformer.parameters())
    rough = velocity_of(world)
    assert rough.dtype == torch.float32
    error = float((rough - exact).norm() / exact.norm())
    assert 1e-5 < error < 0.1


def test_checkpointing_gives_the_same_gradient() -> None:
    gradients = []
    for checkpointing in ("off", "full"):
        world = tiny_world()
        world.transformer.checkpointing = checkpointing
        world.set_mode("transition")
        conditions = world.encode_conditions(tiny_inputs(1))
        with world.policies.live_window():
            latents = torch.ones(1, 4, SLOTS, 4, 4)
            world.velocity(latents, torch.tensor([0.5]), conditions).velocity_BCfHW.square().sum().backward()
        gradients.append(world.transformer.latent_state_rollout.transition.delta.weight.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-7)
