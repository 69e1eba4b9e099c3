"""Within-group agreement of two judges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateplay_rl.nft.agreement import pairwise_agreement

SCORES = st.lists(st.lists(st.floats(0.0, 100.0), min_size=3, max_size=3), min_size=1, max_size=4)


def test_by_hand() -> None:
    """(1, 2, 2): 1 < 2, 1 < 2, tie. (10, 30, 20): less, less, more: two of three pairs agree."""
    assert pairwise_agreement([[1.0, 2.0, 2.0]], [[10.0, 30.0, 20.0]]) == pytest.approx(2 / 3)
    # Pairs of different groups are not compared: levels may differ.
    assert pairwise_agreement([[1.0, 2.0], [90.0, 80.0]], [[50.0, 60.0], [5.0, 1.0]]) == 1.0
    assert pairwise_agreement([[1.0, 2.0]], [None]) == 0.0
    assert pairwise_agreement([], []) is None
    assert pairwise_agreement([[3.0]], [[4.0]]) is None


def test_ties_are_within_points() -> None:
    """60 and 63 are tied within 3 points, 60 and 64 are not; 60.4 rounds to 60."""
    assert pairwise_agreement([[60.0, 63.0]], [[50.0, 50.0]], tie_points=3) == 1.0
    assert pairwise_agreement([[60.0, 64.0]], [[50.0, 50.0]], tie_points=3) == 0.0
    assert pairwise_agreement([[60.0, 60.4]], [[50.0, 50.0]]) == 1.0


def test_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 3 scores"):
        pairwise_agreement([[1.0, 2.0]], [[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError):
        pairwise_agreement([[1.0, 2.0]], [])


@settings(max_examples=50, deadline=None)
@given(scores=SCORES, ties=st.integers(0, 20))
def test_a_judge_agrees_with_itself_and_never_more(scores: list[list[float]], ties: int) -> None:
    assert pairwise_agreement(scores, scores, ties) == 1.0
    mirrored = [[100.0 - s for s in row] for row in scores]
    value = pairwise_agreement(scores, mirrored, ties)
    assert value is not None
    assert 0.0 <= value <= 1.0
