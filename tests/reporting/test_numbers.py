"""How numbers are written."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateplay_rl.reporting.numbers import (
    change,
    compact,
    deviation,
    finite,
    histogram,
    mean,
    plural,
    share,
    short_hash,
    tick_labels,
    ticks,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (12345, "12,345"), (0.0123456, "0.0123"), (1.0523, "1.05"), (123.456, "123"),
     (-2.5, "−2.50"), (0.000412, "4.12e−4"), (64.0, "64")],
)  # fmt: skip
def test_compact(value: float | None, text: str) -> None:
    assert compact(value) == text


def test_compact_never_writes_a_negative_zero() -> None:
    assert compact(-0.04, digits=1) == "0.0"
    assert compact(-0.04, digits=1, signed=True) == "+0.0"


def test_change_writes_sign_and_interval() -> None:
    assert change(26.31, (22.0, 30.49)) == "+26.3 [22.0, 30.5]"
    assert change(-3.14) == "−3.1"
    assert change(1.0, (None, None)) == "+1.0"
    assert change(None) == "–"


def test_finite_turns_nan_and_foreign_values_into_missing() -> None:
    assert finite(float("nan")) is None
    assert finite(math.inf) is None
    assert finite("3") is None
    assert finite(True) is None
    assert finite(3) == 3.0


def test_mean_and_deviation_leave_missing_values_out() -> None:
    assert mean([1.0, None, 3.0]) == 2.0
    assert mean([None]) is None
    assert deviation([1.0, 3.0]) == 1.0
    assert deviation([1.0]) is None


def test_small_words() -> None:
    assert plural(1, "batch", "batches") == "1 batch"
    assert plural(2, "batch", "batches") == "2 batches"
    assert share(0.405) == "40.5 %"
    assert share(1.0) == "100 %"
    assert share(None) == "–"
    assert short_hash("ab" * 32) == "abababababab"
    assert short_hash(None) == "–"


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_ticks_enclose_their_range_and_rise(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    marks = ticks(low, high)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert marks[0] <= low + slack
    assert marks[-1] >= high - slack
    assert all(left < right for left, right in pairwise(marks))
    assert 2 <= len(marks) <= 12


def test_tick_labels_share_their_decimals() -> None:
    assert tick_labels(ticks(0.0, 1.5)) == ("0.0", "0.5", "1.0", "1.5")
    assert tick_labels((0.0, 2.5, 5.0, 7.5)) == ("0.0", "2.5", "5.0", "7.5")
    assert tick_labels((0.0, 20.0, 40.0)) == ("0", "20", "40")
    assert tick_labels((0.0, 0.0002, 0.0004)) == ("0", "2.0e−4", "4.0e−4")


def test_histogram_counts_its_right_edge() -> None:
    assert histogram([0.0, 5.0, 10.0], [0.0, 5.0, 10.0]) == (1, 2)
