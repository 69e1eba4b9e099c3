"""The metrics line, and one planted case for every alarm."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stateplay_rl.stages.train_nft.monitors import alarms_of, batch_metrics, heldout_alarm, velocity_details
from stateplay_rl.stages.train_nft.samples import build_samples
from stateplay_rl.stages.train_nft.update import UpdateStats
from tests.stages.train_nft.helpers import Bench, judged, make_config

KEYS = {
    "batch",
    "optimizer_steps",
    "candidates_seen",
    "groups",
    "groups_tied",
    "groups_gated",
    "groups_failed",
    "reward_mean",
    "reward_by_class",
    "std_within",
    "std_batch",
    "scores_at_0",
    "scores_at_100",
    "r_histogram",
    "loss",
    "loss_by_sigma",
    "grad_norm",
    "update_ratio",
    "zero_gradient_share",
    "distance_live_old",
    "distance_live_reference",
    "velocity_ratio_reference",
    "sampler_mismatch",
    "signal_cosine",
    "eta",
    "diversity",
    "picture",
    "picture_real",
    "skipped_steps",
    "skipped_because",
}


def line_of(bench: Bench, groups: list[Any], stats: UpdateStats | None = None) -> dict[str, Any]:
    return batch_metrics(
        groups,
        build_samples(groups, bench.config, 0),
        stats or UpdateStats(),
        bench.world,
        bench.config,
        batch=0,
        optimizer_steps=7,
        candidates_seen=12,
    )


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def test_the_line_has_the_documented_keys_and_numbers(bench: Bench) -> None:
    failed = judged(2, (None, None), reason="timeout")
    line = line_of(bench, [judged(0, (0.0, 100.0)), judged(1, (60.0, 60.0)), failed])
    assert set(line) >= KEYS
    json.dumps(line, allow_nan=False)
    assert (line["groups"], line["groups_failed"], line["groups_tied"], line["groups_gated"]) == (3, 1, 1, 1)
    assert line["reward_mean"] == 55.0
    assert line["reward_by_class"] == {"macro_hit": 60.0, "normal": 50.0}
    assert line["std_within"] == 25.0
    assert line["std_batch"] == pytest.approx((2 * 5**2 + 55**2 + 45**2) ** 0.5 / 2)
    assert (line["scores_at_0"], line["scores_at_100"]) == (0.25, 0.25)
    assert sum(line["r_histogram"]) == 4
    assert line["eta"] == pytest.approx(0.007)
    assert line["candidates_seen"] == 12
    assert set(line["loss"]) == {"total", "nft", "pos", "neg", "fm_real", "transition_real", "reference"}
    assert set(line["loss_by_sigma"]) == {"low", "mid", "high"}


@pytest.mark.parametrize("scores", [(None, None), (5.0, 5.0)])
def test_a_batch_without_anything_to_train_is_a_valid_line(bench: Bench, scores: tuple[Any, ...]) -> None:
    reason = "timeout" if scores[0] is None else None
    line = line_of(bench, [judged(0, scores, reason=reason, picture_real=None)])
    json.dumps(line, allow_nan=False)
    assert line["picture_real"] is None
    assert line["reward_mean"] == (None if reason else 5.0)
    assert alarms_of(line, line, bench.config) is not None


def test_skipped_steps_leave_no_nan_in_the_line() -> None:
    bench = Bench()
    samples = bench.samples()
    bench.bad = {(samples[0].condition_id, samples[0].candidate)}
    stats = bench.updater.run([samples[:2], samples[2:]], 0, 2)
    line = line_of(bench, [judged(0)], stats)
    json.dumps(line, allow_nan=False)
    assert line["skipped_steps"] == 1
    assert samples[0].condition_id in line["skipped_because"][0]
    assert line["loss"]["nft"] is not None


def test_pictures_and_diversity_are_means(bench: Bench) -> None:
    line = line_of(bench, [judged(0, motion=2.0), judged(1, motion=4.0)])
    assert line["picture"] == {"luma": 100.0, "saturation": 50.0, "motion": 3.0}
    assert line["picture_real"]["motion"] == 4.0
    assert line["diversity"] == 8.0


def healthy(bench: Bench, **changes: Any) -> dict[str, Any]:
    line = line_of(bench, [judged(0), judged(1)])
    return {**line, "distance_live_reference": 1.0, "distance_live_old": 1.0, **changes}


PLANTED = {
    "failed_groups": ({"groups_failed": 1}, "alarm", 0.5),
    "tied_groups": ({"groups_tied": 2}, "warning", 1.0),
    "scores_at_0": ({"scores_at_0": 0.6}, "warning", 0.6),
    "scores_at_100": ({"scores_at_100": 0.75}, "warning", 0.75),
    "velocity_ratio": ({"velocity_ratio_reference": 1.05}, "warning", 1.05),
    "live_equals_reference": ({"distance_live_reference": 0.0}, "alarm", 0.0),
    "motion": ({"picture": {"luma": 100.0, "saturation": 1.0, "motion": 1.0}}, "alarm", 0.25),
    "luma": ({"picture": {"luma": 126.0, "saturation": 1.0, "motion": 4.0}}, "alarm", 26.0),
    "diversity": ({"diversity": 1.0}, "warning", 0.125),
}


@pytest.mark.parametrize("name", list(PLANTED))
def test_each_threshold_fires_alone(bench: Bench, name: str) -> None:
    changes, severity, value = PLANTED[name]
    first = healthy(bench)
    (alarm,) = alarms_of(healthy(bench, **changes), first, bench.config)
    assert (alarm["name"], alarm["severity"], alarm["batch"]) == (name, severity, 0)
    assert alarm["value"] == pytest.approx(value)
    assert alarm["message"]
    json.dumps(alarm, allow_nan=False)


def test_a_healthy_batch_is_quiet(bench: Bench) -> None:
    first = healthy(bench)
    assert alarms_of(first, None, bench.config) == []
    assert alarms_of(first, first, bench.config) == []
    # Values at the edge: not above the threshold, below the warning.
    edge = {"velocity_ratio_reference": 1.0499, "scores_at_0": 0.5, "groups_tied": 1, "diversity": 2.0}
    assert alarms_of(healthy(bench, **edge), first, bench.config) == []
    before_any_step = healthy(bench, optimizer_steps=0, distance_live_reference=0.0)
    assert alarms_of(before_any_step, None, bench.config) == []


def test_videos_without_a_reference_are_not_compared(bench: Bench) -> None:
    still = {"luma": 250.0, "saturation": 0.0, "motion": 0.0}
    assert alarms_of(healthy(bench, picture=still, picture_real=None), None, bench.config) == []


def test_thresholds_come_from_the_config(bench: Bench) -> None:
    strict = make_config(monitors={"velocity_ratio": 1.01})
    assert alarms_of(healthy(bench, velocity_ratio_reference=1.02), None, strict)[0]["threshold"] == 1.01


def test_the_held_out_reward_may_not_fall_far_below_its_best() -> None:
    config = make_config()
    assert heldout_alarm([50.0, 60.0, 55.0], 10, config) is None
    alarm = heldout_alarm([50.0, 60.0, 54.0], 10, config)
    assert alarm is not None
    assert (alarm["name"], alarm["value"], alarm["severity"], alarm["batch"]) == ("heldout_drop", 6.0, "alarm", 9)


def test_velocities_are_compared_on_one_fixed_sample() -> None:
    bench = Bench()
    samples = build_samples([judged(0), judged(1)], bench.config, 0)
    ids = list(bench.inputs)
    bench.inputs |= {"c0": bench.inputs[ids[0]], "c1": bench.inputs[ids[1]]}
    found = velocity_details(bench.objective, samples, 0)
    assert found["velocity_ratio_reference"] == pytest.approx(1.0)
    assert found["sampler_mismatch"] < 1e-4
    bench.nudge("live", 0.3)
    assert velocity_details(bench.objective, samples, 0)["velocity_ratio_reference"] != pytest.approx(1.0, abs=1e-4)
