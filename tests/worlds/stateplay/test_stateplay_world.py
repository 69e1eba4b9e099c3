"""The adapter against the stand-in checkout: the same invariants as the native world's, through its own code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from stateplay_rl.errors import InputError, UsageError
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.stages.candidates import policy_sha256
from stateplay_rl.worlds.base import ConditionBatch, ConditionInputs, ParameterMode
from stateplay_rl.worlds.sampling import sample_candidates
from stateplay_rl.worlds.stateplay.states import CheckoutStates
from stateplay_rl.worlds.stateplay.world import CheckoutWorld

Load = Callable[..., CheckoutWorld]
SLOTS, HEIGHT, WIDTH, CHANNELS = 3, 64, 96, 16
MODES: tuple[ParameterMode, ...] = ("transition", "coupling", "joint")


def inputs(count: int = 2, rows: int = 9) -> list[ConditionInputs]:
    draws = np.random.default_rng(0)
    return [
        ConditionInputs(
            f"c{n}",
            draws.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8),
            draws.integers(0, 2, (rows, 11)).astype(np.float32),
            f"prompt  number {n}",
            SLOTS,
        )
        for n in range(count)
    ]


def noise(count: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, CHANNELS, SLOTS, 8, 12, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def velocity(world: CheckoutWorld, batch: ConditionBatch, x: torch.Tensor, sigma: float = 0.5) -> torch.Tensor:
    return world.velocity(x, torch.full((len(batch),), sigma), batch).velocity_BCfHW


def test_conditions_and_clips_go_through_the_checkouts_encoders(load_standin: Load) -> None:
    world = load_standin()
    batch = world.encode_conditions(inputs())
    assert batch.first_latent_BC1HW.shape == (2, CHANNELS, 1, 8, 12)
    assert batch.action_bins_BfK.shape == (2, SLOTS, 11)
    assert batch.text_BLD.shape == (2, 512, 32)
    used = len("prompt number 0") + 1
    assert bool((batch.text_BLD[0, :used].abs().sum(1) > 0).all())
    assert not bool(batch.text_BLD[0, used:].any())
    first = inputs(1)[0].first_frame_hwc
    clip = np.concatenate([first[None], np.zeros((8, HEIGHT, WIDTH, 3), np.uint8)])
    latents = world.encode_video(clip)
    assert latents.shape == (CHANNELS, SLOTS, 8, 12)
    assert torch.equal(latents[:, :1], batch.first_latent_BC1HW[0])
    video = world.decode(latents[None].repeat(2, 1, 1, 1, 1))
    assert video.shape == (2, 9, HEIGHT, WIDTH, 3)
    assert video.dtype == np.uint8
    assert np.array_equal(video[0], video[1])
    with pytest.raises(InputError, match="8 frames"):
        world.encode_video(clip[:8])
    with pytest.raises(InputError, match="c0: first frame"):
        world.encode_conditions([ConditionInputs("c0", first[:32], np.zeros((9, 11), np.float32), "p", SLOTS)])


def test_a_batch_equals_its_rows_at_their_own_noise_levels(load_standin: Load) -> None:
    world = load_standin()
    batch, x = world.encode_conditions(inputs()), noise()
    sigma_B = torch.tensor([0.3, 0.9])
    with torch.no_grad():
        both = world.velocity(x, sigma_B, batch).velocity_BCfHW
        for row in range(2):
            alone = world.velocity(x[row : row + 1], sigma_B[row : row + 1], batch.select([row])).velocity_BCfHW
            assert torch.equal(both[row : row + 1], alone)
    assert not torch.equal(velocity(world, batch, x, 0.3), velocity(world, batch, x, 0.9))


def test_slot_0_is_the_first_frame_whatever_is_given(load_standin: Load) -> None:
    world = load_standin()
    batch, x = world.encode_conditions(inputs()), noise()
    other = x.clone()
    other[:, :, 0] = 7.0
    assert torch.equal(velocity(world, batch, x), velocity(world, batch, other))


def test_states_cost_one_forward_and_do_not_depend_on_the_video(load_standin: Load) -> None:
    world = load_standin()
    batch = world.encode_conditions(inputs())
    with torch.no_grad():
        states = world.states(batch)
        assert world.dit.calls == 0
        output = world.velocity(noise(), torch.full((2,), 0.4), batch, states)
        assert world.dit.calls == 2
        low, tokens = states.low_BfMS, states.tokens_BNC
        logits = world.transition_logits(states.select([1]), batch.select([1]))
        assert world.dit.calls == 2
        assert output.states is states
        alone = world.states(batch)
        assert torch.equal(alone.low_BfMS, low)
        assert world.dit.calls == 4
        again = world.velocity(noise(seed=5), torch.full((2,), 0.8), batch).states
        assert torch.equal(again.low_BfMS, low)
    assert (low.shape, tokens.shape, logits.shape) == ((2, SLOTS, 4, 16), (2, 4 * SLOTS, 48), (1, SLOTS - 1, 4, 512))


def test_states_of_a_part_are_not_taken_for_the_whole(load_standin: Load) -> None:
    world = load_standin()
    batch = world.encode_conditions(inputs())
    with torch.no_grad():
        states = world.states(batch)
        world.velocity(noise()[:1], torch.full((1,), 0.4), batch.select([1]), states.select([1]))
        assert states.low_BfMS.shape[0] == 2
        repeated = states.select([1, 1])
        assert isinstance(repeated, CheckoutStates)
        assert torch.equal(repeated.low_BfMS[0], states.low_BfMS[1])


def test_the_tokenizers_codes(load_standin: Load) -> None:
    world = load_standin()
    codes = world.transition_codes(noise())
    assert codes.shape == (2, SLOTS - 1, 4)
    assert codes.dtype == torch.int64
    assert 0 <= int(codes.min()) <= int(codes.max()) < 512


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_reach_the_modes_parameters_and_nothing_else(
    load_standin: Load, mode: ParameterMode, recompute: bool, dtype: str
) -> None:
    world = load_standin(gradient_checkpointing=recompute, compute_dtype=dtype)
    batch = world.encode_conditions(inputs(1))
    groups = world.set_mode(mode)
    assert {group.name for group in groups} == {
        "transition": {"transition"},
        "coupling": {"coupling_lora"},
        "joint": {"transition", "coupling_lora"},
    }[mode]
    with world.policies.live_window():
        states = world.states(batch)
        output = world.velocity(noise(1), torch.tensor([0.6]), batch, states)
        loss = output.velocity_BCfHW[:, :, 1:].square().mean()
        loss.backward()
    trained = {id(p) for group in groups for p in group.parameters}
    for name, parameter in world.dit.named_parameters():
        assert (parameter.grad is not None) == (id(parameter) in trained), name
        if id(parameter) in trained:
            assert parameter.dtype == torch.float32
            assert bool(torch.isfinite(parameter.grad).all())
    moved = [p for group in groups for p in group.parameters if bool((p.grad != 0).any())]
    assert len(moved) >= (4 if mode == "coupling" else 6)
    assert not world.dit.training


def test_recomputation_changes_no_gradient(load_standin: Load) -> None:
    gradients = []
    for recompute in (False, True):
        world = load_standin(gradient_checkpointing=recompute, compute_dtype="bfloat16")
        batch = world.encode_conditions(inputs(1))
        (group,) = world.set_mode("transition")
        with world.policies.live_window():
            world.velocity(noise(1), torch.tensor([0.6]), batch).velocity_BCfHW.square().mean().backward()
        gradients.append([p.grad.clone() for p in group.parameters])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_setting_a_mode_changes_no_bit_of_the_function(load_standin: Load) -> None:
    for dtype in ("float32", "bfloat16"):
        for mode in MODES:
            world = load_standin(compute_dtype=dtype)
            batch, x = world.encode_conditions(inputs(1)), noise(1)
            before = velocity(world, batch, x)
            world.set_mode(mode)
            assert torch.equal(velocity(world, batch, x), before), (dtype, mode)


def test_policies_switch_and_windows_hold(load_standin: Load) -> None:
    world = load_standin()
    batch, x = world.encode_conditions(inputs(1)), noise(1)
    (group,) = world.set_mode("transition")
    base = velocity(world, batch, x)
    with torch.no_grad():
        for parameter in group.parameters:
            parameter.add_(0.1)
    assert not torch.equal(velocity(world, batch, x), base)
    with world.policies.use("reference"):
        assert torch.equal(velocity(world, batch, x), base)
    with world.policies.live_window(), pytest.raises(RuntimeError, match="live window"), world.policies.use("old"):
        pass
    with pytest.raises(RuntimeError, match="live_window"):
        world.velocity(x, torch.tensor([0.5]), batch)
    with torch.no_grad():
        promised = world.states(batch)
        with world.policies.use("old"), pytest.raises(RuntimeError, match="looked at under"):
            promised.tokens_BNC  # noqa: B018 (the look itself is what raises)
    with pytest.raises(UsageError, match="already set"):
        world.set_mode("coupling")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
def test_an_exported_policy_is_the_policy(load_standin: Load, mode: ParameterMode, dtype: str) -> None:
    run = load_standin(compute_dtype=dtype)
    batch, x = run.encode_conditions(inputs(1)), noise(1)
    groups = run.set_mode(mode)
    with torch.no_grad():
        for group in groups:
            for number, parameter in enumerate(group.parameters):
                parameter.add_(0.01 * (number + 1))
    policy = run.export_policy("live")
    assert all(value.dtype == torch.float32 for value in policy.values())
    assert policy.keys() <= dict(load_standin().dit.named_parameters()).keys()
    again = load_standin(compute_dtype=dtype)
    again.apply_policy(policy, "policy")
    close = {"float32": 1e-5, "bfloat16": 5e-2}[dtype]
    left, right = velocity(run, batch, x), velocity(again, batch, x)
    assert float((left - right).abs().max() / left.abs().max()) < close
    again.set_mode(mode)
    assert policy_sha256(again, "live") == policy_sha256(run, "live")
    with pytest.raises(UsageError, match="before the parameter mode"):
        again.apply_policy(policy, "policy")
    with pytest.raises(InputError, match="nonsense"):
        load_standin().apply_policy({"nonsense": torch.zeros(1)}, "policy")


def test_zero_gates_take_the_state_out_of_the_picture(load_standin: Load) -> None:
    world = load_standin(gate=0.0)
    batch, x = world.encode_conditions(inputs(1)), noise(1)
    before = velocity(world, batch, x)
    with torch.no_grad():
        for parameter in world.dit.latent_state_rollout.parameters():
            parameter.mul_(3.0)
    assert torch.equal(velocity(world, batch, x), before)


def test_rollouts_pin_the_first_frame_and_repeat(load_standin: Load) -> None:
    world = load_standin(compute_dtype="bfloat16")
    batch = world.encode_conditions(inputs())
    world.set_mode("transition")

    def sample() -> torch.Tensor:
        draws = [torch.Generator().manual_seed(n) for n in range(2)]
        return sample_candidates(world, batch, policy="live", sigmas=sampling_sigmas(3), noise=draws)

    latents = sample()
    assert latents.dtype == torch.bfloat16
    assert torch.equal(latents[:, :, :1], batch.first_latent_BC1HW.bfloat16())
    assert torch.equal(latents, sample())
    assert world.dit.calls == 2 * 2 * 3


@pytest.mark.parametrize(("slots", "reaches"), [(2, False), (3, True)])
def test_the_codes_reach_module_b_from_the_second_step_on(load_standin: Load, slots: int, reaches: bool) -> None:
    world = load_standin()
    (item,) = inputs(1)
    batch = world.encode_conditions([ConditionInputs("c", item.first_frame_hwc, item.held_actions_RK, "p", slots)])
    (group,) = world.set_mode("transition")
    with world.policies.live_window():
        states = world.states(batch)
        world.velocity(noise(1)[:, :, :slots], torch.tensor([0.6]), batch, states)
        logits = world.transition_logits(states, batch)
        assert logits.shape[1] == slots - 1
        if logits.requires_grad:
            logits.square().sum().backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in group.parameters) == reaches


def test_a_checkout_has_no_first_block_cache(load_standin: Load) -> None:
    with pytest.raises(UsageError, match="no first-block cache"):
        load_standin().first_block_cache(0.1)
