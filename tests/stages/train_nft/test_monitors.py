"""The metrics line, and one planted case for every alarm."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stateplay_rl.stages.train_nft.metrics import Counters, batch_metrics
from stateplay_rl.stages.train_nft.monitors import alarms_of, heldout_alarms, timing_alarms
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
    "gating",
    "deviation",
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
    "stage",
    "applied_steps",
    "referee_mean",
    "r_reach",
    "details",
    "audit",
}


def line_of(bench: Bench, groups: list[Any], stats: UpdateStats | None = None) -> dict[str, Any]:
    return batch_metrics(
        groups,
        build_samples(groups, bench.config, 0),
        stats or UpdateStats(),
        bench.world,
        bench.config,
        Counters(0, "a", 7, 12),
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
    assert (line["gating"], line["deviation"]) == ("standard", "batch")
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


MEASURED = {
    "distance_live_reference": 1.0,
    "distance_live_old": 1.0,
    "applied_steps": 2,
    "loss": {"pos": 1.0, "neg": 1.0},
    "loss_by_sigma": {"high": 1.0, "mid": 2.0, "low": None},
    "grad_norm": {"transition": 2.0},
    "update_ratio": {"transition": 0.001},
    "sampler_mismatch": 0.001,
    "signal_cosine": 0.3,
}


def healthy(bench: Bench, **changes: Any) -> dict[str, Any]:
    return {**line_of(bench, [judged(0), judged(1)]), **MEASURED, **changes}


def picture(**changes: float) -> dict[str, dict[str, float]]:
    return {"picture": {"luma": 100.0, "saturation": 50.0, "motion": 4.0, **changes}}


PLANTED = {
    "failed_groups": ({"groups_failed": 1}, "alarm", 0.5),
    "tied_groups": ({"groups_tied": 2}, "warning", 1.0),
    "gated_groups": ({"groups_gated": 2}, "alarm", 1.0),
    "scores_at_0": ({"scores_at_0": 0.6}, "warning", 0.6),
    "scores_at_100": ({"scores_at_100": 0.75}, "warning", 0.75),
    "reward_drop": ({"reward_mean": 40.0}, "warning", 20.0),
    "narrow_r": ({"r_reach": 0.01}, "warning", 0.01),
    "signal_cosine": ({"signal_cosine": 0.01}, "warning", 0.01),
    "velocity_ratio": ({"velocity_ratio_reference": 1.05}, "warning", 1.05),
    "live_equals_old": ({"distance_live_old": 0.0}, "alarm", 0.0),
    "live_equals_reference": ({"distance_live_reference": 0.0}, "alarm", 0.0),
    "skipped_steps": ({"skipped_steps": 1, "skipped_because": ["step 0: x"]}, "warning", 1.0),
    "zero_gradients": ({"zero_gradient_share": 0.95}, "alarm", 0.95),
    "update_ratio/transition": ({"update_ratio": {"transition": 0.1}}, "warning", 0.1),
    "sampler_mismatch": ({"sampler_mismatch": 0.06}, "warning", 0.06),
    "loss_by_sigma": ({"loss_by_sigma": {"high": 1.0, "mid": 11.0, "low": 2.0}}, "warning", 11.0),
    "loss_pos": ({"loss": {"pos": 3.5, "neg": 1.0}}, "warning", 3.5),
    "loss_neg": ({"loss": {"pos": 1.0, "neg": 3.5}}, "warning", 3.5),
    "grad_norm/transition": ({"grad_norm": {"transition": 50.0}}, "warning", 25.0),
    "motion": (picture(motion=1.0), "alarm", 0.25),
    "luma": (picture(luma=126.0), "alarm", 26.0),
    "luma_growth": (picture(luma=106.0), "alarm", 6.0),
    "saturation": (picture(saturation=10.0), "alarm", 40.0),
    "diversity": ({"diversity": 1.0}, "warning", 0.125),
}


@pytest.mark.parametrize("name", list(PLANTED))
def test_each_threshold_fires_alone(bench: Bench, name: str) -> None:
    changes, severity, value = PLANTED[name]
    first = healthy(bench)
    found = alarms_of(healthy(bench, **changes), first, bench.config, 60.0)
    # A brightness far from the real clips has also grown far.
    (alarm,) = [a for a in found if name == "luma_growth" or a["name"] != "luma_growth"]
    assert (alarm["name"], alarm["severity"], alarm["batch"]) == (name, severity, 0)
    assert alarm["value"] == pytest.approx(value)
    assert alarm["message"]
    json.dumps(alarm, allow_nan=False)


def test_a_healthy_batch_is_quiet(bench: Bench) -> None:
    first = healthy(bench)
    assert alarms_of(first, None, bench.config) == []
    assert alarms_of(first, first, bench.config, first["reward_mean"]) == []
    # Values at the edge: not above the threshold, below the warning.
    edge = {"velocity_ratio_reference": 1.0499, "scores_at_0": 0.5, "groups_tied": 1, "diversity": 2.0}
    assert alarms_of(healthy(bench, **edge), first, bench.config) == []
    nothing = {"distance_live_reference": 0.0, "distance_live_old": 0.0, "applied_steps": 0}
    before_any_step = healthy(bench, optimizer_steps=0, **nothing)
    assert alarms_of(before_any_step, None, bench.config) == []


def test_brightness_that_was_wrong_from_the_start_is_no_growth(bench: Bench) -> None:
    """The base is 10 levels off: a step closer or a little further is nothing, 6 levels further is an alarm."""
    first = healthy(bench, **picture(luma=90.0))
    for luma, names in ((90.0, []), (100.0, []), (87.0, []), (112.0, []), (84.0, ["luma_growth"])):
        assert [a["name"] for a in alarms_of(healthy(bench, **picture(luma=luma)), first, bench.config)] == names


def test_videos_without_a_reference_are_not_compared(bench: Bench) -> None:
    still = {"luma": 250.0, "saturation": 0.0, "motion": 0.0}
    assert alarms_of(healthy(bench, picture=still, picture_real=None), None, bench.config) == []


def test_thresholds_come_from_the_config(bench: Bench) -> None:
    strict = make_config(monitors={"velocity_ratio": 1.01})
    assert alarms_of(healthy(bench, velocity_ratio_reference=1.02), None, strict)[0]["threshold"] == 1.01


def test_a_number_that_is_none_is_an_alarm_and_valid_json(bench: Bench) -> None:
    """A threshold is not passed by comparing with NaN."""
    (alarm,) = alarms_of(healthy(bench, zero_gradient_share=float("nan")), None, bench.config)
    assert (alarm["name"], alarm["value"]) == ("zero_gradients", None)
    json.dumps(alarm, allow_nan=False)


def test_the_held_out_reward_may_not_fall_far_below_its_best() -> None:
    config = make_config()
    nothing = [None] * 3
    assert heldout_alarms([50.0, 60.0, 55.0], nothing, 10, config) == []
    (alarm,) = heldout_alarms([50.0, 60.0, 54.0], nothing, 10, config)
    assert (alarm["name"], alarm["value"], alarm["severity"], alarm["batch"]) == ("heldout_drop", 6.0, "alarm", 9)


def test_a_judge_that_rises_while_the_referee_falls_is_an_alarm() -> None:
    config = make_config()
    (alarm,) = heldout_alarms([50.0, 60.0], [40.0, 30.0], 4, config)
    assert (alarm["name"], alarm["value"], alarm["severity"]) == ("referee_falls", 10.0, "alarm")
    # Both fall together: the policy got worse, and the judge says so.
    assert heldout_alarms([50.0, 46.0], [40.0, 30.0], 4, config) == []
    assert heldout_alarms([50.0, 60.0], [40.0, 36.0], 4, config) == []
    assert heldout_alarms([50.0, 60.0], [None, None], 4, config) == []


def test_slow_batches_and_full_gpus_are_told() -> None:
    monitors = make_config().monitors
    line = {"batch": 3, "seconds": {"train": 20.0, "rollout_and_score": 11.0}, "peak_memory_mb": 960.0}
    assert timing_alarms(line, None, None, monitors) == []
    assert [a["name"] for a in timing_alarms(line, 10.0, 1000.0, monitors)] == ["batch_seconds", "gpu_memory"]
    assert timing_alarms(line, 11.0, 2000.0, monitors) == []
