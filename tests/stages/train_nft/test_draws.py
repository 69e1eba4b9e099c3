"""Draws of a call: the same ahead of their time, and never another call's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from stateplay_rl.stages.train_nft.draws import Draw, Visit
from stateplay_rl.stages.train_nft.gradients import global_gradient
from tests.stages.train_nft.helpers import ONE, Bench

VISIT = Visit(3, 1, anchors=True)


def with_thread(bench: Bench) -> Bench:
    """As with a GPU: drawn by a thread."""
    bench.objective.draws._thread = ThreadPoolExecutor(1)
    return bench


def test_without_a_gpu_nothing_is_drawn_ahead() -> None:
    bench = Bench()
    bench.objective.draw_ahead(bench.samples(1), VISIT, None)
    assert not bench.objective.draws._begun


def equal(left: Draw, right: Draw) -> bool:
    pairs = [(left.x0, right.x0), (left.eps, right.eps), (left.level_B, right.level_B)]
    if left.weight_B is not None and right.weight_B is not None:
        pairs.append((left.weight_B, right.weight_B))
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("level", [None, 1])
def test_ahead_is_the_same(level: int | None) -> None:
    now, ahead = Bench(), with_thread(Bench())
    samples = now.samples(2)
    draws = ahead.objective.draws
    ahead.objective.draw_ahead(samples, VISIT, level)
    assert len(draws._begun) == 2
    assert equal(draws.of_samples(samples, VISIT, level), now.objective.draws.of_samples(samples, VISIT, level))
    rows, clips = now.objective._clips_of(samples)
    chosen = [samples[row] for row in rows]
    assert equal(draws.of_clips(chosen, clips, VISIT), now.objective.draws.of_clips(chosen, clips, VISIT))
    assert not draws._begun


def test_another_call_is_drawn_anew_and_what_nobody_took_is_forgotten() -> None:
    bench = with_thread(Bench())
    samples, draws = bench.samples(3), bench.objective.draws
    draws.begin_samples(samples[:1], VISIT, None)
    other = draws.of_samples(samples[1:2], VISIT, None)
    assert torch.equal(other.x0[0], bench.objective._latents_of(samples[1]))
    assert len(draws._begun) == 1
    draws.begin_samples(samples[2:], VISIT, None)
    assert [key[1] for key in draws._begun] == [tuple(samples[2:])]  # type: ignore[index]


def test_a_step_has_the_same_gradient_to_the_bit() -> None:
    found = []
    for bench in (Bench(), with_thread(Bench())):
        parameters = [p for group in bench.groups for p in group.parameters]
        found.append(global_gradient(bench.objective, bench.samples(), VISIT, parameters, ONE).flat())
        assert not bench.objective.draws._begun
    assert torch.equal(*found)


def test_an_error_of_the_thread_is_that_of_the_call() -> None:
    bench = with_thread(Bench())
    samples = bench.samples(1)

    def broken(_: object) -> torch.Tensor:
        raise OSError("the disk is gone")

    bench.objective.draws._latents_of = broken
    bench.objective.draw_ahead(samples, VISIT, None)
    with pytest.raises(OSError, match="the disk is gone"):
        bench.objective.prepare(samples, VISIT, None)
