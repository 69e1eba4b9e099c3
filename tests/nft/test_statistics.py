"""Bootstrap intervals over clusters of conditions."""

from __future__ import annotations

import pytest
import torch

from stateplay_rl.nft.statistics import (
    Interval,
    bootstrap_conditions,
    bootstrap_mean,
    paired_differences,
)


def width(interval: Interval) -> float:
    assert interval.low is not None
    assert interval.high is not None
    return interval.high - interval.low


def normal(count: int, seed: int) -> list[float]:
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return [float(value) for value in values]


def test_every_condition_counts_once():
    """Four conditions at 0 in one cluster and one at 10: the mean over conditions is 2, over clusters 5."""
    assert bootstrap_mean([[0.0] * 4, [10.0]]).mean == 2.0


def test_two_clusters_resample_to_both_ends():
    """Of two clusters 0 and 10 a quarter of the draws is (0, 0): the 2.5 percentile is 0, the 97.5 one 10."""
    interval = bootstrap_mean([[0.0], [10.0]])
    assert (interval.low, interval.high, interval.clusters) == (0.0, 10.0, 2)


def test_interval_is_that_of_the_normal_law():
    values = normal(400, seed=3)
    interval = bootstrap_mean([[value] for value in values])
    half = 1.96 * float(torch.tensor(values, dtype=torch.float64).std(correction=0)) / 20
    assert interval.high is not None
    assert interval.high - interval.mean == pytest.approx(half, rel=0.1)
    assert width(interval) == pytest.approx(2 * half, rel=0.1)


def test_the_pieces_of_the_resampling_are_one_stream():
    """More draws than are held at once: the interval is that of all of them."""
    values = [[value] for value in normal(50, seed=1)]
    assert width(bootstrap_mean(values, resamples=2500)) == pytest.approx(width(bootstrap_mean(values)), rel=0.1)


def test_clusters_of_equal_members_widen_the_interval():
    """Ten clusters of ten equal values carry the information of ten values, not of a hundred."""
    centres = normal(10, seed=1)
    values = {f"{c}-{k}": centres[c] for c in range(10) for k in range(10)}
    clusters = {name: int(name.split("-")[0]) for name in values}
    single, whole = bootstrap_conditions(values), bootstrap_conditions(values, clusters)
    assert single is not None
    assert whole is not None
    assert (single.clusters, whole.clusters) == (100, 10)
    assert single.mean == pytest.approx(whole.mean, abs=1e-12)
    assert width(whole) > 2.5 * width(single)


def test_equal_seeds_give_equal_intervals_and_others_do_not():
    data = [[value] for value in normal(20, seed=2)]
    assert bootstrap_mean(data, seed=1) == bootstrap_mean(data, seed=1)
    assert bootstrap_mean(data, seed=1) != bootstrap_mean(data, seed=2)


def test_the_order_of_conditions_does_not_matter():
    values = {f"c{i}": value for i, value in enumerate(normal(12, seed=5))}
    assert bootstrap_conditions(dict(reversed(values.items()))) == bootstrap_conditions(values)


def test_a_condition_without_a_cluster_is_its_own():
    interval = bootstrap_conditions({"a": 1.0, "b": 2.0, "c": 4.0}, {"a": 0, "b": 0})
    assert interval is not None
    assert interval.clusters == 2


def test_differences_take_the_conditions_spread_out():
    """Conditions lie 0..90 apart, each gains exactly 3: the paired interval is 3 to 3."""
    before = {f"c{i}": 10.0 * i for i in range(10)}
    interval = bootstrap_conditions(paired_differences(before, {k: v + 3 for k, v in before.items()}))
    assert interval is not None
    assert (interval.mean, interval.low, interval.high) == pytest.approx((3.0, 3.0, 3.0))
    assert interval.above_zero
    assert not interval.below_zero


def test_the_mean_difference_is_the_difference_of_the_means():
    """Clusters of different sizes: 3 conditions that gain 4, one that loses 2."""
    before = {"a": 10.0, "b": 20.0, "c": 0.0, "d": 50.0}
    after = {"a": 14.0, "b": 24.0, "c": 4.0, "d": 48.0}
    clusters = {"a": 1, "b": 1, "c": 1, "d": 2}
    gain = bootstrap_conditions(paired_differences(before, after), clusters)
    ends = [bootstrap_conditions(side, clusters) for side in (before, after)]
    assert gain is not None
    assert ends[0] is not None
    assert ends[1] is not None
    assert gain.mean == ends[1].mean - ends[0].mean == 2.5


def test_pairs_only_conditions_with_both_scores():
    before = {"a": 1.0, "b": None, "c": 5.0}
    after = {"a": 4.0, "b": 2.0, "d": 9.0}
    assert paired_differences(before, after) == {"a": 3.0}


def test_one_cluster_has_no_interval():
    assert bootstrap_mean([[1.0, 3.0]]) == Interval(2.0, None, None, 1)
    assert not bootstrap_mean([[1.0, 3.0]]).above_zero
    assert bootstrap_conditions({}) is None


def test_empty_or_infinite_data_is_refused():
    with pytest.raises(ValueError, match="cluster"):
        bootstrap_mean([])
    with pytest.raises(ValueError, match="empty"):
        bootstrap_mean([[1.0], []])
    with pytest.raises(ValueError, match="finite"):
        bootstrap_mean([[float("nan")], [1.0]])
