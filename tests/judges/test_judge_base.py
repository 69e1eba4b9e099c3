"""A failure is never a score."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stateplay_rl.judges.base import GroupVerdict, checked, failed, scored


def test_a_full_verdict_passes_unchanged() -> None:
    verdict = scored([0, 50, 99.5, 100], request_id="r1", details={"a": 1})
    assert checked(verdict, 4) == verdict
    assert all(type(score) is float for score in checked(verdict, 4).scores)


@pytest.mark.parametrize(
    "scores, word",
    [
        ((1.0, 2.0, 3.0), "3 scores for 4"),
        ((1.0, None, 3.0, 4.0), "partial: candidate 1"),
        ((1.0, math.nan, 3.0, 4.0), "nan"),
        ((1.0, math.inf, 3.0, 4.0), "inf"),
        ((1.0, 100.1, 3.0, 4.0), "outside 0..100"),
        ((1.0, -0.1, 3.0, 4.0), "outside 0..100"),
        ((1.0, True, 3.0, 4.0), "True"),
        ((1.0, "85", 3.0, 4.0), "85"),
    ],
)
def test_a_broken_verdict_fails_as_a_whole(scores: tuple, word: str) -> None:
    result = checked(GroupVerdict(scores, "scored", request_id="r1"), 4)
    assert result.status == "failed"
    assert result.scores == (None,) * 4
    assert word in str(result.reason)
    assert result.request_id == "r1"


def test_a_failed_verdict_loses_scores_that_it_carries() -> None:
    result = checked(GroupVerdict((1.0, 2.0), "failed", "no answer"), 2)
    assert result.scores == (None, None)
    assert result.reason == "no answer"
    assert checked(GroupVerdict((1.0,), "in_doubt"), 1).reason == "in_doubt without a reason"
    assert failed(3, "x").scores == (None, None, None)


def test_numpy_scores_become_plain_floats() -> None:
    result = checked(scored([np.float32(1.5), np.float64(2.5), np.int64(3)]), 3)
    assert result.scores == (1.5, 2.5, 3.0)
    assert all(type(score) is float for score in result.scores)
