"""Paired bootstrap over clusters."""

from __future__ import annotations

import numpy as np

from stateplay_rl.reporting.statistics import Interval, bootstrap_mean, histogram, paired_differences


def width(interval: Interval) -> float:
    assert interval.low is not None
    assert interval.high is not None
    return interval.high - interval.low


def test_pairs_only_conditions_with_both_scores() -> None:
    before = {"a": 1.0, "b": None, "c": 5.0}
    after = {"a": 4.0, "b": 2.0, "d": 9.0}
    assert paired_differences(before, after) == {"a": 3.0}


def test_interval_of_a_known_normal_sample() -> None:
    """100 draws of N(3, 1): the half width must be near 1.96 / 10 = 0.196."""
    values = np.random.default_rng(0).normal(3.0, 1.0, 100)
    interval = bootstrap_mean({str(index): float(value) for index, value in enumerate(values)})
    assert interval is not None
    assert abs(interval.mean - values.mean()) < 1e-12
    assert 0.15 < width(interval) / 2 < 0.25
    assert interval.above_zero
    assert interval.units == 100


def test_clusters_of_equal_members_widen_the_interval() -> None:
    """Ten clusters of ten equal values carry the information of ten values, not of a hundred."""
    centres = np.random.default_rng(1).normal(0.0, 1.0, 10)
    values = {f"{c}-{k}": float(centres[c]) for c in range(10) for k in range(10)}
    clusters = {name: int(name.split("-")[0]) for name in values}
    single, whole = bootstrap_mean(values), bootstrap_mean(values, clusters)
    assert single is not None
    assert whole is not None
    assert whole.units == 10
    assert width(whole) > 2.5 * width(single)


def test_repeats_exactly_and_handles_little_data() -> None:
    values = {"a": 1.0, "b": 4.0}
    assert bootstrap_mean(values) == bootstrap_mean(values)
    assert bootstrap_mean({}) is None
    one = bootstrap_mean({"a": 2.0})
    assert one is not None
    assert (one.mean, one.low, one.above_zero) == (2.0, None, False)


def test_histogram_counts_its_right_edge() -> None:
    assert histogram([0.0, 5.0, 10.0], [0.0, 5.0, 10.0]) == (1, 2)
