"""Agreement measures on hand-made scores."""

from __future__ import annotations

import pytest

from stateplay_rl.reward_model.agreement import (
    Judged,
    agreement_of,
    baseline_scores,
    by_class,
    by_position,
    calibration,
    calibration_error,
    cluster_interval,
    pair_sign,
    spearman,
    summarise,
)


def judged(
    judge: tuple[float, ...],
    student: tuple[float, ...] | None,
    *,
    cluster: int = 0,
    name: str = "normal",
    order: tuple[int, ...] | None = None,
) -> Judged:
    return Judged(f"g{cluster}", cluster, name, judge, student, order or tuple(range(len(judge))))


def test_a_tie_is_a_third_class() -> None:
    """Judge 10 < 50 = 50 < 90. The student ties the lowest with the middle: 4 of 6 pairs."""
    found = agreement_of((10, 50, 50, 90), (40, 40, 40, 80))
    assert (found.pairs, found.agreed) == (6, 4)
    assert agreement_of((10, 50, 50, 90), (20, 60, 60, 70)).agreed == 6
    assert agreement_of((10, 50, 50, 90), (20, 60, 61, 70)).agreed == 5
    assert agreement_of((50, 50), (1, 2)).agreed == 0


def test_ties_are_found_on_rounded_points() -> None:
    assert pair_sign(50.4, 49.6, 0) == 0
    assert pair_sign(50.6, 49.6, 0) == 1
    assert pair_sign(49.6, 52.4, 2) == 0
    assert pair_sign(49.6, 53.4, 2) == -1


def test_top_and_bottom_give_no_credit_for_ties() -> None:
    """Tied for the top: right by the share of tied candidates that are the judge's best."""
    found = agreement_of((90, 10, 20, 30), (50, 50, 5, 60))
    assert (found.top, found.bottom) == (0.0, 0.0)
    assert agreement_of((90, 10, 20, 30), (50, 50, 50, 50)).top == 0.25
    assert agreement_of((90, 90, 20, 30), (50, 10, 20, 30)).top == 1.0


def test_a_failed_parse_agrees_with_nothing() -> None:
    found = agreement_of((50, 50, 10), None)
    assert (found.pairs, found.agreed, found.top, found.bottom, found.absolute_error) == (3, 0, 0.0, 0.0, None)
    summary = summarise([judged((50, 50), None), judged((10, 90), (20, 80))])
    assert summary["pairwise_agreement"] == 0.5
    assert summary["parse_failures"] == 1
    assert summary["mae_points"] == 10.0


def test_spearman_with_mean_ranks() -> None:
    assert spearman((1, 2, 3, 4), (10, 20, 30, 40)) == pytest.approx(1.0)
    assert spearman((1, 2, 3, 4), (4, 3, 2, 1)) == pytest.approx(-1.0)
    # Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: 4.5 / sqrt(4.5 x 5).
    assert spearman((1, 2, 2, 4), (1, 2, 3, 4)) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert spearman((1, 2, 3, 4), (7, 7, 7, 7)) == 0.0


def test_groups_without_a_spread_have_no_ranks() -> None:
    summary = summarise([judged((50, 50, 50), (50, 50, 50))])
    assert summary["pairwise_agreement"] == 1.0
    assert (summary["top_agreement"], summary["spearman"]) == (None, None)
    assert summarise([])["pairwise_agreement"] is None


def test_intervals_resample_whole_clusters() -> None:
    """Two clusters, one all right and one all wrong: only 0, 1/2 and 1 can be drawn, however many groups they hold."""
    right, wrong = judged((1, 2), (1, 2), cluster=1), judged((1, 2), (2, 1), cluster=2)
    options = {"tie_points": 0, "confidence": 0.95, "resamples": 500, "seed": 1}
    found = cluster_interval([right] * 9 + [wrong] * 9, **options)
    assert found is not None
    assert (found.low, found.high) == (0.0, 1.0)
    assert cluster_interval([right] * 9, **options) is None
    same = cluster_interval([right, judged((1, 2), (1, 2), cluster=3)], **options)
    assert same is not None
    assert (same.low, same.high) == (1.0, 1.0)
    assert cluster_interval([right, wrong], **options) == cluster_interval([right, wrong], **options)


def test_baselines_see_no_picture() -> None:
    training = [judged((90, 10), None, name="a", order=(0, 1)), judged((30, 70), None, name="b", order=(1, 0))]
    test = [judged((1, 2), (1, 2), name="a", order=(1, 0)), judged((1, 2), (1, 2), name="c")]
    found = baseline_scores(training, test)
    assert [group.student for group in found["constant"]] == [(50.0, 50.0)] * 2
    # First position: 90 and 70; second: 10 and 30.
    assert [group.student for group in found["position_only"]] == [(20.0, 80.0), (80.0, 20.0)]
    assert [group.student for group in found["class_only"]] == [(50.0, 50.0), (50.0, 50.0)]
    assert summarise(found["class_only"])["pairwise_agreement"] == 0.0


def test_by_position_and_class() -> None:
    groups = [judged((10, 90), (20, 80), name="a", order=(1, 0)), judged((10, 90), None, name="b")]
    rows = by_position(groups)
    assert [row["judge_mean"] for row in rows] == [90.0, 10.0]
    assert [row["student_mean"] for row in rows] == [80.0, 20.0]
    assert [row["pairwise_agreement"] for row in rows] == [0.5, 0.5]
    found = by_class(groups)
    assert {name: row["groups"] for name, row in found.items()} == {"a": 1, "b": 1}
    assert (found["a"]["calibration_error_points"], found["b"]["calibration_error_points"]) == (10.0, None)


def test_calibration_bins_hold_every_score() -> None:
    groups = [judged((10, 100, 55), (5, 100, 55)), judged((0, 0), None)]
    rows = calibration(groups)
    assert [(row["low"], row["count"], row["judge_mean"]) for row in rows] == [(0, 1, 10), (50, 1, 55), (90, 1, 100)]
    assert calibration_error(groups) == pytest.approx(5 / 3)
    assert calibration_error(groups[1:]) is None
