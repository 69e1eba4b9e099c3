"""Faults of the judge server: in their shares, reproducible, and never readable as scores."""

from __future__ import annotations

from collections import Counter
from statistics import fmean, pstdev

import pytest

from stateplay_rl.arena.serve_faults import MALFORMED, FaultPlan, good_content, malformed_message
from stateplay_rl.errors import UnparsedAnswer
from stateplay_rl.judges.parsing import parse_answer

SCORES = {"A": 10.0, "B": 50.0, "C": 60.0, "D": 90.0}


def test_faults_come_in_their_shares() -> None:
    plan = FaultPlan(rate_limit=0.1, error=0.05, timeout=0.03, reset=0.02, malformed=0.05, wrong_model=0.01)
    found = Counter(plan.fault(f"{n:064x}", 0) for n in range(20_000))
    shares = {"rate_limit": 0.1, "error": 0.05, "timeout": 0.03, "reset": 0.02, "malformed": 0.05, "wrong_model": 0.01}
    for name, share in shares.items():
        # Four deviations of a binomial.
        assert abs(found[name] / 20_000 - share) < 4 * (share * (1 - share) / 20_000) ** 0.5
    assert [plan.fault("ab", n) for n in range(50)] == [plan.fault("ab", n) for n in range(50)]
    assert FaultPlan().fault("ab", 0) == "none"


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_answer_is_not_read(kind: str) -> None:
    message, finish = malformed_message(kind, SCORES)
    with pytest.raises(UnparsedAnswer):
        parse_answer(
            {"message": message, "finish_reason": finish, "model": "m"}, labels=tuple(SCORES), requested_model="m"
        )


def test_a_good_answer_is_read() -> None:
    answer = {"message": {"content": good_content(SCORES)}, "finish_reason": "stop", "model": "m"}
    assert parse_answer(answer, labels=tuple(SCORES), requested_model="m") == SCORES


def test_noise_and_bias_are_what_was_asked_for() -> None:
    plan = FaultPlan(noise=4.0, request_noise=3.0, position_bias=(5.0, 0.0, 0.0, -5.0), low=30.0, high=70.0)
    draws = [plan.bent(dict.fromkeys("ABCD", 50.0), f"{n:064x}", 0) for n in range(4000)]
    assert fmean(d["A"] for d in draws) == pytest.approx(55.0, abs=0.4)
    assert fmean(d["D"] for d in draws) == pytest.approx(45.0, abs=0.4)
    assert pstdev([d["B"] - d["C"] for d in draws]) == pytest.approx(4.0 * 2**0.5, rel=0.05)
    assert pstdev([fmean(d.values()) for d in draws]) == pytest.approx((9 + 16 / 4) ** 0.5, rel=0.05)
    assert plan.bent(SCORES, "ab", 0) == plan.bent(SCORES, "ab", 0) != plan.bent(SCORES, "ab", 1)


def test_scores_stay_in_range() -> None:
    plan = FaultPlan(noise=80.0)
    for n in range(200):
        assert all(0 <= value <= 100 for value in plan.bent(SCORES, f"{n:064x}", 0).values())
