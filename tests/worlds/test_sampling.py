"""Sampling of candidates on the tiny world."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from stateplay_rl.nft.randomness import generator
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.worlds.base import ConditionBatch, StateSequence
from stateplay_rl.worlds.native.world import NativeStates, NativeWorld
from stateplay_rl.worlds.sampling import SamplingMethod, initial_noise, sample_candidates
from tests.worlds.tiny import tiny_inputs, tiny_world

SIGMAS = sampling_sigmas(3)


def sample(world: NativeWorld, rows: list[int], seeds: list[int], policy: str = "live") -> torch.Tensor:
    conditions = world.encode_conditions(tiny_inputs(2)).select(rows)
    noise = [generator(seed) for seed in seeds]
    return sample_candidates(world, conditions, policy=policy, sigmas=SIGMAS, noise=noise)


def test_candidates_are_stored_in_bfloat16_with_the_first_frame_in_slot_0() -> None:
    world = tiny_world()
    latents = sample(world, [0, 0, 0, 0], [1, 2, 3, 4])
    assert latents.shape == (4, 4, 3, 4, 4)
    assert latents.dtype == torch.bfloat16
    first = world.encode_conditions(tiny_inputs(1)).first_latent_BC1HW[0].to(torch.bfloat16)
    for candidate in latents:
        assert torch.equal(candidate[:, :1], first)
    assert not torch.equal(latents[0], latents[1])
    assert not latents.is_inference()


def test_the_same_call_gives_the_same_bits_whatever_ran_before() -> None:
    world = tiny_world()
    expected = sample(world, [0, 0], [1, 2])
    sample(world, [1, 1, 1], [7, 8, 9])
    torch.manual_seed(99)
    assert torch.equal(sample(world, [0, 0], [1, 2]), expected)
    assert torch.equal(sample(tiny_world(), [0, 0], [1, 2]), expected)


def test_a_candidate_does_not_depend_on_its_batch() -> None:
    world = tiny_world()
    together = sample(world, [0, 1], [1, 2]).float()
    for row in range(2):
        alone = sample(world, [row], [row + 1]).float()
        torch.testing.assert_close(alone[0], together[row], rtol=2e-2, atol=1e-3)


def test_the_euler_path_by_hand() -> None:
    """x <- x + (sigma' - sigma) v with slot 0 overwritten before and after each step."""
    world = tiny_world()
    conditions = world.encode_conditions(tiny_inputs(1))
    first = conditions.first_latent_BC1HW
    x = torch.randn((1, 4, 3, 4, 4), generator=generator(5))
    x[:, :, :1] = first
    grid = [*SIGMAS.tolist(), 0.0]
    with torch.no_grad():
        for now, after in pairwise(grid):
            v = world.velocity(x, torch.tensor([now]), conditions).velocity_BCfHW
            x = x + (after - now) * v
            x[:, :, :1] = first
    torch.testing.assert_close(sample(world, [0], [5]).float(), x, rtol=1e-2, atol=1e-3)


def test_drawn_noise_and_generators_agree_and_wrong_ones_are_refused() -> None:
    world = tiny_world()
    conditions = world.encode_conditions(tiny_inputs(2))
    noise = initial_noise(conditions, [generator(1), generator(2)])
    drawn = sample_candidates(world, conditions, policy="live", sigmas=SIGMAS, noise=noise)
    assert torch.equal(drawn, sample(world, [0, 1], [1, 2]))
    with pytest.raises(ValueError, match="1 generators for 2"):
        initial_noise(conditions, [generator(1)])
    with pytest.raises(ValueError, match="does not fit"):
        sample_candidates(world, conditions, policy="live", sigmas=SIGMAS, noise=noise[:1])


def test_the_named_policy_is_sampled() -> None:
    world = tiny_world()
    world.set_mode("full")
    before = sample(world, [0], [1], "live")
    world.policies.load("live", {n: v + 0.02 for n, v in world.policies.state("live").items()})
    assert torch.equal(sample(world, [0], [1], "old"), before)
    assert not torch.equal(sample(world, [0], [1], "live"), before)


def test_states_are_computed_once_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = NativeWorld.states

    def counted(self: NativeWorld, conditions: ConditionBatch) -> NativeStates:
        calls.append(len(conditions))
        return original(self, conditions)

    monkeypatch.setattr(NativeWorld, "states", counted)
    sample(tiny_world(), [0, 0, 0, 0], [1, 2, 3, 4])
    assert calls == [4]
    assert issubclass(NativeStates, StateSequence)


def test_the_taylor_cache_asks_the_world_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    world = tiny_world()
    conditions = world.encode_conditions(tiny_inputs(1))
    calls = []
    original = NativeWorld.velocity
    monkeypatch.setattr(NativeWorld, "velocity", lambda *a: (calls.append(1), original(*a))[1])
    arguments = {"policy": "live", "sigmas": sampling_sigmas(12), "noise": [generator(1)]}
    full = sample_candidates(world, conditions, **arguments)
    assert len(calls) == 12
    cached = sample_candidates(world, conditions, method=SamplingMethod(taylor_every=3), **arguments)
    assert len(calls) == 12 + 6
    assert torch.equal(full[:, :, :1], cached[:, :, :1])
    assert not torch.equal(full, cached)
