"""Optimizer steps: their order, clipping, skips, counters and rates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stateplay_rl.errors import EXIT_OUTSIDE, OutsideError
from stateplay_rl.stages.train_nft import gradients, update
from stateplay_rl.stages.train_nft.gradients import SummedGradient
from stateplay_rl.stages.train_nft.update import BAD_STEPS_IN_A_ROW, learning_rate
from tests.stages.train_nft.helpers import Bench, make_config, no_anchors


def test_reduce_check_norm_clip_step_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(optimizer={"samples_per_step": 4, "max_gradient_norm": 1e-3})
    events: list[str] = []
    reduce, norm = gradients._reduce, SummedGradient.norm
    finite = SummedGradient.is_finite.fget  # type: ignore[attr-defined]
    step = bench.updater.optimizer.step
    norms: list[float] = []

    def logged(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            events.append(name)
            return function(*arguments)

        return call

    def stepped() -> None:
        events.append("step")
        norms.append(float(torch.cat([p.grad.reshape(-1) for p in bench.parameters]).norm()))
        step()

    monkeypatch.setattr(gradients, "_reduce", logged("reduce", reduce))
    monkeypatch.setattr(SummedGradient, "is_finite", property(logged("check", finite)))
    monkeypatch.setattr(SummedGradient, "norm", logged("norm", norm))
    monkeypatch.setattr(bench.updater.optimizer, "step", stepped)
    bench.updater.run([bench.samples()], 0, 1)
    assert events == ["reduce", "check", "norm", "step"]
    # What the optimizer saw had been clipped.
    assert norms == [pytest.approx(1e-3, rel=1e-4)]


def test_a_gradient_below_the_limit_is_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(optimizer={"max_gradient_norm": 1e9})
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(
        bench.updater.optimizer, "step", lambda: seen.append(torch.cat([p.grad.reshape(-1) for p in bench.parameters]))
    )
    stats = bench.updater.run([bench.samples()], 0, 1)
    assert float(seen[0].norm()) == pytest.approx(stats.norm_sums["transition"], rel=1e-5)


def test_one_nan_sample_skips_the_step_and_names_layer_and_sample() -> None:
    bench = Bench()
    samples = bench.samples()
    bench.bad = {(samples[1].condition_id, samples[1].candidate)}
    live = bench.world.policies.sha256("live")
    stats = bench.updater.run([samples], 0, 1)
    assert (stats.skipped_steps, stats.applied_steps, bench.updater.optimizer_steps) == (1, 0, 0)
    assert bench.world.policies.sha256("live") == live
    (reason,) = stats.skipped_because
    assert f"{samples[1].condition_id}/{samples[1].candidate}" in reason
    assert any(name in reason for name in bench.groups[0].names)
    assert stats.sums.means()["nft"] is None
    assert stats.mean(stats.norm_sums) == {}


def test_a_good_step_ends_the_count_of_bad_ones() -> None:
    bench = Bench()
    good, bad = bench.samples()[:2], bench.samples()[2:]
    bench.bad = {(bad[0].condition_id, bad[0].candidate)}
    stats = bench.updater.run([bad, bad, good, bad, bad, good], 0, 6)
    assert (stats.skipped_steps, stats.applied_steps, bench.updater.bad_in_a_row) == (4, 2, 0)
    assert bench.updater.optimizer_steps == 2
    # The losses are those of the applied steps: none of them is NaN.
    assert all(value is None or value == value for value in stats.sums.means().values())
    assert stats.sums.counts["nft"] == 4


def test_three_bad_steps_in_a_row_stop_the_run_and_leave_live_alone() -> None:
    bench = Bench()
    samples = bench.samples()
    bench.bad = {(samples[0].condition_id, samples[0].candidate)}
    live = bench.world.policies.sha256("live")
    bench.updater.run([samples, samples], 0, 2)
    with pytest.raises(OutsideError, match="3 non-finite optimizer steps") as caught:
        bench.updater.run([samples], 1, 1)
    assert caught.value.exit_code == EXIT_OUTSIDE
    assert "--resume" in caught.value.hint
    assert samples[0].condition_id in caught.value.what
    assert BAD_STEPS_IN_A_ROW == 3
    assert bench.world.policies.sha256("live") == live


def test_only_live_moves_and_every_group_is_measured() -> None:
    bench = Bench(mode="joint")
    policies = bench.world.policies
    before = {name: policies.sha256(name) for name in ("live", "old", "reference")}
    frozen = {n: p.detach().clone() for n, p in bench.world.transformer.named_parameters() if not p.requires_grad}
    stats = bench.updater.run([bench.samples(), bench.samples()], 0, 2)
    after = {name: policies.sha256(name) for name in ("live", "old", "reference")}
    assert after["live"] != before["live"]
    assert (after["old"], after["reference"]) == (before["old"], before["reference"])
    now = dict(bench.world.transformer.named_parameters())
    assert all(torch.equal(value, now[name]) for name, value in frozen.items())
    assert stats.applied_steps == bench.updater.optimizer_steps == 2
    assert set(stats.norm_sums) == set(stats.ratio_sums) == {"transition", "coupling_lora"}
    assert all(value > 0 for value in stats.mean(stats.norm_sums).values())


def test_anchors_take_part_in_every_nth_step(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(anchors={"anchor_every": 2})
    visits: list[tuple[int, bool]] = []
    real = update.global_gradient

    def watched(objective: Any, samples: Any, visit: Any, *rest: Any) -> Any:
        visits.append((visit.inner_pass, visit.anchors))
        return real(objective, samples, visit, *rest)

    monkeypatch.setattr(update, "global_gradient", watched)
    samples = bench.samples()
    bench.updater.run([samples[:2], samples[2:]] * 2, 0, 2)
    assert visits == [(0, True), (0, False), (1, True), (1, False)]


def test_no_samples_no_step() -> None:
    bench = Bench()
    stats = bench.updater.run([], 0, 0)
    assert (stats.applied_steps, bench.updater.optimizer_steps) == (0, 0)
    assert stats.mean({"transition": 0.0}) == {"transition": 0.0}


def test_each_group_has_its_own_rate() -> None:
    config = make_config(
        mode="joint",
        optimizer={"learning_rate_transition": 1e-5, "learning_rate_coupling": 2e-4, "learning_rate_full": 3e-3},
    )
    assert learning_rate("transition", config) == 1e-5
    assert learning_rate("coupling_lora", config) == 2e-4
    assert learning_rate("backbone", config.model_copy(update={"mode": "full"})) == 3e-3
    with pytest.raises(KeyError):
        learning_rate("backbone", config)


def test_the_optimizer_is_adamw_without_decay() -> None:
    """First AdamW step from zero moments: every weight with a gradient moves by its rate (eps aside)."""
    bench = Bench(anchors=no_anchors(), optimizer={"learning_rate_transition": 1e-3})
    before = {n: v.clone() for n, v in bench.world.policies.state("live").items()}
    bench.updater.run([bench.samples()], 0, 1)
    moved = torch.cat([(v - before[n]).abs().reshape(-1) for n, v in bench.world.policies.state("live").items()])
    assert float(moved.max()) == pytest.approx(1e-3, rel=1e-2)
    (group,) = bench.updater.optimizer.param_groups
    assert (group["weight_decay"], group["betas"], group["eps"]) == (0.0, (0.9, 0.999), 1e-8)
