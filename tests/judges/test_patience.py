"""Waits between tries, and the end of patience."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateplay_rl.config.judging import RequestsConfig
from stateplay_rl.errors import OutsideError
from stateplay_rl.judges.patience import TOLD_AFTER_SECONDS, Patience, wait_seconds

LIMITS = RequestsConfig(backoff_first_seconds=1, backoff_most_seconds=60)


@given(tries=st.integers(1, 10_000), draw=st.floats(0, 1, exclude_max=True))
def test_waits_double_up_to_the_longest(tries: int, draw: float) -> None:
    wait = wait_seconds(tries, None, LIMITS, lambda: draw)
    full = min(60.0, 2.0 ** min(tries - 1, 10))
    assert full / 2 <= wait <= full


@given(asked=st.floats(0, 1e5), tries=st.integers(1, 50), draw=st.floats(0, 1, exclude_max=True))
def test_what_the_server_asks_is_never_cut_short(asked: float, tries: int, draw: float) -> None:
    assert asked <= wait_seconds(tries, asked, LIMITS, lambda: draw) <= asked + 1.0


def test_an_endpoint_that_never_answered_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = Patience(LIMITS)
    patience.refused("http_503")
    now[0] += LIMITS.first_answer_seconds - 1
    patience.refused("http_503")
    now[0] += 2
    with pytest.raises(OutsideError, match=r"not answered once.*http_503"):
        patience.refused("http_503")


def test_an_outage_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = Patience(LIMITS)
    patience.answered(None)
    for _ in range(24 * 60):
        patience.refused("http_503")
        now[0] += 60
    patience.answered(None)
    patience.refused("http_503")
    now[0] += LIMITS.outage_seconds + 1
    with pytest.raises(OutsideError, match="stopped answering"):
        patience.refused("http_503")


def test_an_endpoint_that_takes_and_never_answers_is_not_paid_for_ever() -> None:
    patience = Patience(RequestsConfig(doubts_in_a_row=3))
    for _ in range(3):
        patience.doubtful("ReadTimeout")
    patience.answered("no_json")
    for _ in range(3):
        patience.doubtful("ReadTimeout")
    with pytest.raises(OutsideError, match="4 requests in a row"):
        patience.doubtful("ReadTimeout")


def test_a_relay_that_swaps_the_model_is_not_paid_for_ever() -> None:
    patience = Patience(RequestsConfig(unread_in_a_row=3))
    for _ in range(3):
        patience.answered("model_mismatch")
    patience.answered(None)
    for _ in range(3):
        patience.answered("model_mismatch")
    with pytest.raises(OutsideError, match="model_mismatch"):
        patience.answered("model_mismatch")


def test_people_are_told_of_an_outage_and_not_of_a_hiccup(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = Patience(LIMITS)
    patience.refused("http_429")
    now[0] += TOLD_AFTER_SECONDS - 1
    assert patience.trouble is None
    patience.refused("http_503")
    now[0] += 2
    assert patience.trouble == "http_503"
    patience.answered(None)
    assert patience.trouble is None
