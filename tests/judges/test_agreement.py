"""Agreement inside groups, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from stateplay_rl.judges.agreement import agreement


def test_a_judge_agrees_with_itself_up_to_scale() -> None:
    rng = np.random.default_rng(0)
    first = {f"g{n}": rng.uniform(0, 100, 4).tolist() for n in range(20)}
    second = {g: [10 + 0.5 * s for s in scores] for g, scores in first.items()}
    (row,) = agreement(first, second, {})
    assert row.correlation == pytest.approx(1.0)
    assert (row.pairs_alike, row.pairs_tied, row.best_alike) == (1.0, 0.0, 1.0)
    assert row.low == pytest.approx(1.0)


def test_differences_between_groups_count_for_nothing() -> None:
    """Both rise from group to group, and order each group oppositely: pooled they correlate, inside they do not."""
    first = {f"g{n}": [10.0 * n, 10.0 * n + 2] for n in range(10)}
    second = {f"g{n}": [10.0 * n + 2, 10.0 * n] for n in range(10)}
    (row,) = agreement(first, second, {})
    assert row.correlation == pytest.approx(-1.0)
    assert row.pairs_alike == 0.0
    assert row.best_alike == 0.0
    assert row.difference == pytest.approx(0.0)
    # Differences are +2 and -2: squares sum to 8 in each group with one degree of freedom.
    assert row.scatter == pytest.approx(8**0.5)


def test_ties_are_told_apart() -> None:
    """Three pairs: one tied by the second judge, one alike, one opposed."""
    (row,) = agreement({"g": [1.0, 2.0, 3.0]}, {"g": [5.0, 5.0, 4.9999]}, {})
    assert row.pairs_tied == pytest.approx(1 / 3)
    assert row.pairs_alike == 0.0
    assert (row.low, row.high) == (None, None)


def test_constant_scores_have_no_correlation() -> None:
    (row,) = agreement({"g": [50.0] * 4, "h": [50.0] * 4}, {"g": [1.0, 2, 3, 4], "h": [1.0, 2, 3, 4]}, {})
    assert (row.correlation, row.low, row.pairs_alike) == (None, None, None)
    assert row.pairs_tied == 1.0


def test_only_common_groups_by_class() -> None:
    first = {"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1.0, 2.0, 3.0]}
    second = {"b": [2.0, 1.0], "a": [1.0, 2.0], "c": [1.0, 2.0], "d": [0.0, 1.0]}
    rows = {row.name: row for row in agreement(first, second, {"a": "normal", "b": "macro_hit"})}
    assert {name: row.groups for name, row in rows.items()} == {"all": 2, "macro_hit": 1, "normal": 1}
    assert rows["normal"].pairs_alike == 1.0
    assert rows["macro_hit"].pairs_alike == 0.0
    assert agreement({}, second, {})[0].groups == 0
