"""Bootstrap intervals over clusters."""

from __future__ import annotations

import pytest
import torch

from stateplay_rl.nft.statistics import bootstrap_mean, paired_difference


def test_mean_counts_every_cluster_once():
    """Clusters (0, 0, 0, 0) and (10): the mean of the cluster means is 5, not 2."""
    assert bootstrap_mean([[0.0] * 4, [10.0]]).mean == 5.0


def test_two_clusters_resample_to_both_ends():
    """Of two clusters 0 and 10 a quarter of the draws is (0, 0): the 2.5 percentile is 0, the 97.5 one 10."""
    interval = bootstrap_mean([[0.0], [10.0]])
    assert (interval.low, interval.high, interval.clusters) == (0.0, 10.0, 2)


def test_interval_is_that_of_the_normal_law():
    values = torch.randn(400, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    interval = bootstrap_mean([[float(v)] for v in values])
    half = 1.96 * float(values.std(correction=0)) / 20
    assert interval.high - interval.mean == pytest.approx(half, rel=0.1)
    assert interval.mean - interval.low == pytest.approx(half, rel=0.1)


def test_repeats_of_one_condition_are_not_more_evidence():
    few = bootstrap_mean([[0.0], [10.0], [4.0]])
    many = bootstrap_mean([[0.0] * 50, [10.0] * 50, [4.0] * 50])
    assert few == many


def test_equal_seeds_give_equal_intervals():
    data = [[float(i % 7)] for i in range(20)]
    assert bootstrap_mean(data, seed=1) == bootstrap_mean(data, seed=1)


def test_paired_difference_takes_the_conditions_spread_out():
    """Conditions lie 0..90 apart, each gains exactly 3: the paired interval is 3 to 3."""
    before = {f"c{i}": [10.0 * i, 10.0 * i + 2] for i in range(10)}
    after = {k: [v + 3 for v in values] for k, values in before.items()}
    interval = paired_difference(before, after)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((3.0, 3.0, 3.0))


def test_clusters_join_near_duplicates():
    before = {"a": [0.0], "b": [0.0], "c": [0.0]}
    after = {"a": [4.0], "b": [4.0], "c": [1.0]}
    alone = paired_difference(before, after)
    joined = paired_difference(before, after, cluster_of={"a": 1, "b": 1, "c": 2})
    assert (alone.clusters, joined.clusters) == (3, 2)
    assert joined.mean == 2.5


def test_unpaired_or_empty_data_is_refused():
    with pytest.raises(ValueError, match="same conditions"):
        paired_difference({"a": [1.0]}, {"b": [1.0]})
    with pytest.raises(ValueError, match="no score"):
        paired_difference({"a": []}, {"a": [1.0]})
    with pytest.raises(ValueError, match="cluster"):
        bootstrap_mean([])
    with pytest.raises(ValueError, match="finite"):
        bootstrap_mean([[float("nan")]])
