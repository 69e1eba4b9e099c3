"""The gradient cosine of a batch: what it measures, what it leaves alone, when it is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from stateplay_rl.distributed import Processes
from stateplay_rl.nft.signal import gradient_cosine
from stateplay_rl.stages.group_gradients import group_gram, usable_groups
from stateplay_rl.stages.train_nft import loop
from stateplay_rl.stages.train_nft.draws import Visit
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.stages.train_nft.signal import signal_cosine
from stateplay_rl.stages.train_nft.timing import PartTimer
from tests.stages.train_nft.helpers import ONE, Bench, make_config, no_anchors

R = (1.0, 0.0, 0.9, 0.2, 0.1, 0.8, 0.3, 1.0)


def cosine_of(bench: Bench, samples: Sequence[Sample] | None = None, batch: int = 3) -> float | None:
    chosen = bench.samples(8, R) if samples is None else samples
    return signal_cosine(bench.objective, chosen, bench.parameters, ONE, batch)


def test_it_is_the_cosine_of_the_groups_gradients_at_live_equals_old() -> None:
    plain = Bench(anchors=no_anchors())
    units = usable_groups(plain.samples(8, R))
    assert [len(unit) for unit in units] == [2, 2, 2, 2]
    gram_NN = group_gram(plain.objective, units, plain.parameters, ONE, Visit(3, 0, anchors=False))
    expected = gradient_cosine(gram_NN).mean
    assert -1.0 <= expected <= 1.0
    assert cosine_of(plain) == expected
    # Another batch draws other noise.
    assert cosine_of(plain, batch=4) != expected


def test_what_pulls_every_group_the_same_way_does_not_count() -> None:
    """Neither anchors, nor the penalty, nor live's distance from old raise the agreement."""
    expected = cosine_of(Bench(anchors=no_anchors()))
    held = Bench(anchors={"fm_real": 5.0, "transition_real": 5.0, "reference_penalty": 5.0})
    assert cosine_of(held) == expected
    held.nudge("live")
    assert held.world.policies.distance("live", "old") > 0
    assert cosine_of(held) == expected


def test_the_update_is_the_same_to_the_bit_with_and_without_it() -> None:
    hashes = []
    for measures in (False, True):
        bench = Bench()
        bench.nudge("live")
        before = {name: bench.world.policies.sha256(name) for name in ("live", "old", "reference")}  # type: ignore[arg-type]
        torch.manual_seed(1)
        if measures:
            assert cosine_of(bench) is not None
        assert {name: bench.world.policies.sha256(name) for name in before} == before  # type: ignore[arg-type]
        assert all(parameter.grad is None for parameter in bench.parameters)
        drawn = float(torch.rand(()))
        bench.updater.run([bench.samples(8, R)], 3, 1)
        hashes.append((drawn, bench.world.policies.sha256("live")))
    assert hashes[0] == hashes[1]


def test_fewer_than_two_groups_that_pull_somewhere_are_not_measured() -> None:
    bench = Bench()
    samples = bench.samples(8, R)
    assert cosine_of(bench, []) is None
    assert cosine_of(bench, samples[:2]) is None
    tied = [replace(s, r=0.5) for s in samples[2:]]
    assert cosine_of(bench, [*samples[:2], *tied]) is None
    assert cosine_of(bench, [*samples[:4], *tied[2:]]) == cosine_of(bench, samples[:4])


def test_a_gradient_that_is_not_finite_is_left_to_the_update() -> None:
    bench = Bench()
    bench.nudge("live")
    live = bench.world.policies.sha256("live")
    samples = bench.samples(8, R)
    bench.bad = {(samples[5].condition_id, samples[5].candidate)}
    assert cosine_of(bench, samples) is None
    assert bench.world.policies.sha256("live") == live


def test_groups_whose_gradients_cancel_have_no_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "stateplay_rl.stages.train_nft.signal.group_gram"
    ones = torch.ones(1, 2, dtype=torch.float64)
    opposed = torch.cat([ones, -ones, ones, -ones])
    monkeypatch.setattr(module, lambda *_: opposed @ opposed.T)
    assert cosine_of(Bench()) is None
    monkeypatch.setattr(module, lambda *_: torch.zeros(4, 4, dtype=torch.float64))
    assert cosine_of(Bench()) is None
    # A group without a gradient is left out; the others agree fully.
    still = torch.cat([ones, 0 * ones, ones, ones])
    monkeypatch.setattr(module, lambda *_: still @ still.T)
    assert cosine_of(Bench()) == pytest.approx(1.0)


def test_every_rank_logs_what_rank_0_measured() -> None:
    class Second(Processes):
        def broadcast(self, value: Any) -> Any:
            return [0.25]

    bench = Bench()
    other = Second(0, 1, torch.device("cpu"))
    assert signal_cosine(bench.objective, bench.samples(8, R), bench.parameters, other, 0) == 0.25


@pytest.mark.parametrize(("every", "due"), [(0, []), (1, [0, 1, 2, 3, 4, 5]), (3, [0, 3])])
def test_it_is_measured_every_n_batches(monkeypatch: pytest.MonkeyPatch, every: int, due: list[int]) -> None:
    monkeypatch.setattr(loop, "signal_cosine", lambda *arguments: float(arguments[-1]))
    trainer = SimpleNamespace(
        config=make_config(monitors={"signal_every_batches": every}),
        updater=SimpleNamespace(objective=None, parameters=[]),
        processes=ONE,
    )
    found = {
        b: loop.Trainer._signal(cast(Any, trainer), cast(Any, SimpleNamespace(samples=())), b, PartTimer())
        for b in range(6)
    }
    assert {b: v for b, v in found.items() if v is not None} == {b: float(b) for b in due}
