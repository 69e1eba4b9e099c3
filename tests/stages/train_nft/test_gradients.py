"""Gradients do not depend on how calls are spread over ranks; every sample and every sigma takes part once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from stateplay_rl.distributed import Processes
from stateplay_rl.stages.train_nft import gradients
from stateplay_rl.stages.train_nft.draws import Visit
from stateplay_rl.stages.train_nft.gradients import SummedGradient, calls_of, global_gradient
from stateplay_rl.stages.train_nft.loss_sums import LossSums
from stateplay_rl.worlds.base import ConditionBatch, StateSequence
from tests.stages.train_nft.helpers import ONE, Bench, no_anchors
from tests.worlds.tiny import SLOTS

VISIT = Visit(0, 0, anchors=True)


class Rank:
    """One of several ranks; notes what it would add to the sum over ranks."""

    turns = Processes.turns

    def __init__(self, rank: int, count: int, lockstep: bool = False) -> None:
        self.rank, self.count, self.lockstep = rank, count, lockstep
        self.contributed = torch.zeros(0)

    def mine(self, items: Sequence[Any]) -> list[tuple[int, Any]]:
        return [(index, item) for index, item in enumerate(items) if index % self.count == self.rank]

    def sum_(self, tensor: Tensor) -> Tensor:
        self.contributed = tensor.clone()
        return tensor

    def gather(self, values: Sequence[Any]) -> list[Any]:
        return list(values)


def by_hand(
    bench: Bench, samples: Sequence[Any], count: int, lockstep: bool = False
) -> tuple[Tensor, LossSums, list[Tensor]]:
    """Gradient and losses of `count` ranks, summed in float64."""
    parts = []
    for rank in range(count):
        one = Rank(rank, count, lockstep)
        global_gradient(bench.objective, samples, VISIT, bench.parameters, one)  # type: ignore[arg-type]
        parts.append(one.contributed)
    assert all(part.dtype == torch.float64 for part in parts)
    total = torch.stack(parts).sum(dim=0)
    packed = len(LossSums().pack())
    return total[:-packed].float(), LossSums.unpack(total[-packed:].tolist()), parts


def distance(left: Tensor, right: Tensor) -> float:
    """Relative distance of two gradients."""
    return float((left - right).norm() / right.norm())


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("per_call", [1, 2])
def test_any_number_of_ranks_gives_the_same_float32_gradient(count: int, per_call: int) -> None:
    bench = Bench(optimizer={"samples_per_call": per_call})
    bench.nudge("live")
    samples = bench.samples()
    alone = global_gradient(bench.objective, samples, VISIT, bench.parameters, ONE)
    summed, sums, parts = by_hand(bench, samples, count)
    assert torch.equal(alone.flat(), summed)
    assert sums.means() == pytest.approx(alone.sums.means())
    calls = len(calls_of(samples, per_call))
    # Ranks without a call add nothing; nothing is duplicated to fill them.
    assert sum(bool(part.any()) for part in parts) == min(count, calls)


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_in_step_make_equally_many_forwards_and_the_same_gradient(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Sharded weights: a condition without a clip, and a rank without a call, still take part in every forward."""
    bench = Bench()
    bench.nudge("live")
    samples = bench.samples(5, r=(1.0, 0.0, 0.9, 0.2, 0.4))
    bench.no_clip = {samples[2].condition_id}
    alone = global_gradient(bench.objective, samples, VISIT, bench.parameters, ONE)
    forwards: list[int] = []
    real = bench.world.velocity
    monkeypatch.setattr(bench.world, "velocity", lambda *a, **k: (forwards.append(1), real(*a, **k))[1])
    counts = []
    for rank in range(count):
        forwards.clear()
        global_gradient(bench.objective, samples, VISIT, bench.parameters, Rank(rank, count, True))  # type: ignore[arg-type]
        counts.append(len(forwards))
    assert len(set(counts)) == 1
    summed, _, _ = by_hand(bench, samples, count, lockstep=True)
    assert torch.equal(alone.flat(), summed)


def test_calls_hold_videos_of_one_length() -> None:
    bench = Bench()
    ids = list(bench.inputs)
    bench.shorten(ids[1])
    samples = bench.samples(6)
    calls = calls_of(samples, 3)
    assert [len({s.latent_frames for s in call}) for call in calls] == [1] * len(calls)
    assert sorted(s for call in calls for s in map(id, call)) == sorted(map(id, samples))
    assert [len(call) for call in calls] == [2, 3, 1]
    assert calls[0][0].latent_frames == SLOTS - 1


def test_mixed_lengths_give_the_mean_of_both() -> None:
    bench = Bench(anchors=no_anchors(), optimizer={"samples_per_call": 4})
    bench.shorten(next(iter(bench.inputs)))
    samples = bench.samples()
    whole = global_gradient(bench.objective, samples, VISIT, bench.parameters, ONE)
    halves = [global_gradient(bench.objective, samples[k : k + 2], VISIT, bench.parameters, ONE) for k in (0, 2)]
    mean = (halves[0].flat().double() + halves[1].flat().double()) / 2
    assert distance(whole.flat().double(), mean) < 1e-5
    assert whole.sums.counts["nft"] == 4


def test_one_call_of_four_is_four_calls_of_one() -> None:
    found = []
    for size in (1, 4):
        bench = Bench(optimizer={"samples_per_call": size})
        bench.nudge("live")
        found.append(global_gradient(bench.objective, bench.samples(), VISIT, bench.parameters, ONE))
    assert distance(found[0].flat(), found[1].flat()) < 1e-5


def test_a_small_step_is_divided_by_its_own_count() -> None:
    bench = Bench()
    samples = bench.samples(3)
    whole = global_gradient(bench.objective, samples, VISIT, bench.parameters, ONE).flat().double()
    each = [global_gradient(bench.objective, [s], VISIT, bench.parameters, ONE).flat().double() for s in samples]
    assert distance(whole, sum(each) / 3) < 1e-5


def test_full_schedule_visits_every_sigma_of_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(loss={"full_schedule": True}, anchors=no_anchors())
    seen: list[tuple[str, int, float]] = []
    prepare = bench.objective.prepare

    def watched(samples: Any, visit: Visit, level: int | None) -> Any:
        prepared = prepare(samples, visit, level)
        pairs = zip(samples, prepared.sample.sigma_B.tolist(), strict=True)
        seen.extend((s.condition_id, s.candidate, sigma) for s, sigma in pairs)
        return prepared

    monkeypatch.setattr(bench.objective, "prepare", watched)
    samples = bench.samples()
    gradient = global_gradient(bench.objective, samples, VISIT, bench.parameters, ONE)
    sigmas = bench.objective.sigmas.tolist()
    assert sorted(seen) == sorted((s.condition_id, s.candidate, sigma) for s in samples for sigma in sigmas)
    assert gradient.sums.counts["nft"] == len(samples) * len(sigmas)
    assert None not in gradient.sums.by_sigma().values()
    monkeypatch.setattr(bench.objective, "prepare", prepare)
    single = Bench(anchors=no_anchors())
    levels = []
    for level in range(len(sigmas)):
        prepared = single.objective.prepare(samples, VISIT, level)
        with single.world.policies.live_window():
            single.objective.losses(prepared, LossSums()).double().mean().backward()
        levels.append(torch.cat([p.grad.reshape(-1).double() for p in single.parameters]))
        for parameter in single.parameters:
            parameter.grad = None
    assert distance(gradient.flat().double(), sum(levels) / len(levels)) < 1e-5


def test_anchors_are_a_mean_over_the_samples_that_have_a_clip() -> None:
    """At r = 1/2 and live = old only the anchors pull: two of four samples with a clip pull as those two alone."""
    bench = Bench()
    samples = bench.samples(r=(0.5,))
    bench.no_clip = {samples[0].condition_id}
    mixed = global_gradient(bench.objective, samples, VISIT, bench.parameters, ONE).flat()
    alone = global_gradient(bench.objective, samples[2:], VISIT, bench.parameters, ONE).flat()
    assert float(alone.norm()) > 0
    assert torch.allclose(mixed, alone, rtol=1e-3, atol=1e-3 * float(alone.abs().max()))
    bench.no_clip = set(bench.inputs)
    none = global_gradient(bench.objective, samples, VISIT, bench.parameters, ONE)
    assert none.norm() < 1e-3 * float(alone.norm())


def test_whether_there_is_a_clip_is_asked_without_reading_it() -> None:
    bench = Bench()
    asked: list[str] = []

    def has_clip(condition_id: str) -> bool:
        asked.append(condition_id)
        return True

    objective = type(bench.objective)(
        bench.world, bench.config, bench.conditions_of, bench.latents_of, bench.real_of, has_clip
    )
    samples = bench.samples()
    assert gradients.anchor_scale(objective, samples, VISIT) == 1.0
    assert asked == [s.condition_id for s in samples]
    assert gradients.anchor_scale(objective, samples, Visit(0, 0, anchors=False)) == 1.0
    assert len(asked) == len(samples)


@pytest.mark.parametrize("per_call", [1, 4])
def test_a_bad_sample_is_named(per_call: int) -> None:
    bench = Bench(optimizer={"samples_per_call": per_call})
    samples = bench.samples()
    bench.bad = {(samples[2].condition_id, samples[2].candidate)}
    gradient = global_gradient(bench.objective, samples, VISIT, bench.parameters, ONE)
    assert not gradient.is_finite
    assert gradient.first_bad_sample == f"{samples[2].condition_id}/{samples[2].candidate}"


def test_the_norm_is_that_of_the_flat_gradient() -> None:
    bench = Bench()
    gradient = global_gradient(bench.objective, bench.samples(), VISIT, bench.parameters, ONE)
    assert gradient.norm() == pytest.approx(float(gradient.flat().double().norm()), rel=1e-9)
    assert all(p.grad is None for p in bench.parameters)


@pytest.mark.parametrize("mode", ["transition", "joint"])
def test_the_anchors_backward_may_come_apart(mode: str) -> None:
    """With half of the activations at a time: the same gradient, sums and losses but for the order of additions."""
    found: list[SummedGradient] = []
    for apart in (False, True):
        bench = Bench(mode)
        bench.nudge("live", 0.1)
        bench.no_clip = {bench.samples()[0].condition_id}
        bench.objective.backward_apart = apart
        found.append(global_gradient(bench.objective, bench.samples(), VISIT, bench.parameters, ONE))
    assert alike(found)
    assert not torch.equal(found[0].flat(), found[1].flat())


def alike(found: list[SummedGradient]) -> bool:
    """The same gradients and sums but for the order of additions."""
    first, second = (gradient.sums.means() for gradient in found)
    for part, mean in first.items():
        assert second[part] == (None if mean is None else pytest.approx(mean, rel=1e-6)), part
    return distance(found[0].flat(), found[1].flat()) < 1e-5


@pytest.mark.parametrize("mode", ["transition", "coupling", "joint"])
@pytest.mark.parametrize("visit", [VISIT, Visit(0, 0, anchors=False)])
@pytest.mark.parametrize(("at_once", "per_call"), [(3, 1), (4, 1), (2, 3)])
def test_state_sequences_of_several_calls_may_be_computed_at_once(
    mode: str, visit: Visit, at_once: int, per_call: int
) -> None:
    found = []
    for together in (False, True):
        bench = Bench(mode, optimizer={"samples_per_call": per_call})
        bench.nudge("live", 0.1)
        samples = bench.samples(r=(0.1, 0.9))
        bench.no_clip = {samples[0].condition_id}
        if together:
            bench.objective.calls_at_once = at_once
        found.append(global_gradient(bench.objective, samples, visit, bench.parameters, ONE))
        assert all(p.grad is None for p in bench.parameters)
    assert alike(found)


def test_at_once_asks_for_the_states_of_old_and_of_live_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And always of as many conditions, each of them computed once."""
    bench = Bench()
    bench.objective.calls_at_once = 4
    asked: list[tuple[str, tuple[str, ...]]] = []
    states = bench.world.states

    def watched(conditions: ConditionBatch) -> StateSequence:
        asked.append((bench.world.policies.current, conditions.condition_ids))
        return states(conditions)

    monkeypatch.setattr(bench.world, "states", watched)
    samples = bench.samples()[:4]
    first, second = samples[0].condition_id, samples[-1].condition_id
    assert first != second
    global_gradient(bench.objective, samples, VISIT, bench.parameters, ONE)
    conditions = (first, second, second, second)
    assert asked == [("old", conditions), ("live", conditions)]


def test_a_bad_sample_is_named_among_several_at_once() -> None:
    for bad in range(3):
        bench = Bench()
        bench.objective.calls_at_once = 3
        samples = bench.samples()
        bench.bad = {(samples[bad].condition_id, samples[bad].candidate)}
        gradient = global_gradient(bench.objective, samples, VISIT, bench.parameters, ONE)
        assert not gradient.is_finite
        assert gradient.first_bad_sample == f"{samples[bad].condition_id}/{samples[bad].candidate}"


def test_parts_hold_one_length() -> None:
    short, long = ([replace(Bench().samples()[0], latent_frames=f)] for f in (3, 4))
    turns = [((call, None), True) for call in (short, short, short, long, long)]
    sizes = {size: [len(part) for part in gradients._parts(turns, size)] for size in (1, 2, 4)}
    assert sizes == {1: [1] * 5, 2: [2, 1, 2], 4: [3, 2]}
