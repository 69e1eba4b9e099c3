"""Named weights, totals of our own, and one failed part fails the group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateplay_rl.errors import UsageError
from stateplay_rl.judges.base import GroupVerdict, failed, scored
from stateplay_rl.judges.mix import MixJudge, MixPart
from tests.judges.judge_fakes import FakeJudge, stored_group

GROUP = stored_group()
A, B = (0.0, 10.0, 50.0, 100.0), (100.0, 20.0, 50.0, 100.0)


def mix(**parts: tuple[FakeJudge, float]) -> MixJudge:
    return MixJudge({name: MixPart(judge, weight) for name, (judge, weight) in parts.items()})


def test_total_is_the_weighted_mean() -> None:
    """Weights 3 and 1: 0.75 * A + 0.25 * B, by hand: 25, 12.5, 50, 100."""
    verdict = mix(a=(FakeJudge(scored(A)), 3.0), b=(FakeJudge(scored(B)), 1.0)).score_group(GROUP)
    assert verdict.scores == (25.0, 12.5, 50.0, 100.0)
    assert verdict.details["a"]["scores"] == list(A)
    assert verdict.details["b"]["status"] == "scored"


@given(
    scores=st.lists(st.floats(0, 100), min_size=4, max_size=4),
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6),
)
def test_equal_parts_give_the_same_score_and_never_leave_the_range(scores: list[float], weights: list[float]) -> None:
    parts = {f"p{n}": (FakeJudge(scored(scores)), weight) for n, weight in enumerate(weights)}
    verdict = mix(**parts).score_group(GROUP)
    assert verdict.scores == pytest.approx(scores, abs=1e-9)
    assert all(0 <= score <= 100 for score in verdict.scores)


@pytest.mark.parametrize("broken", [failed(4, "no_json"), scored([1, 2, 3]), scored([1, 2, 3, 101])])
def test_any_failed_part_fails_the_group_and_is_named(broken: GroupVerdict) -> None:
    verdict = mix(good=(FakeJudge(scored(A)), 1.0), bad=(FakeJudge(broken), 1e-6)).score_group(GROUP)
    assert verdict.status == "failed"
    assert verdict.scores == (None,) * 4
    assert str(verdict.reason).startswith("bad: ")


def test_in_doubt_stays_in_doubt_unless_another_part_failed() -> None:
    doubt = FakeJudge(GroupVerdict((None,) * 4, "in_doubt", "timeout", "r7"))
    good, bad = FakeJudge(scored(A)), FakeJudge(failed(4, "x"))
    verdict = mix(a=(good, 1.0), b=(doubt, 1.0)).score_group(GROUP)
    assert (verdict.status, verdict.request_id) == ("in_doubt", "r7")
    assert mix(a=(bad, 1.0), b=(doubt, 1.0)).score_group(GROUP).status == "failed"


def test_identity_depends_on_weights_and_parts_but_not_on_their_order() -> None:
    one, two = FakeJudge(scored(A), "one"), FakeJudge(scored(B), "two")
    first = mix(a=(one, 1.0), b=(two, 2.0))
    assert first.protocol_sha256 == mix(b=(two, 2.0), a=(one, 1.0)).protocol_sha256
    assert first.protocol_sha256 != mix(a=(one, 2.0), b=(two, 1.0)).protocol_sha256
    assert first.judge_id == "mix(a=one,b=two)"


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_weights_must_be_positive(weight: float) -> None:
    with pytest.raises(UsageError):
        mix(a=(FakeJudge(scored(A)), weight))
    with pytest.raises(UsageError):
        MixJudge({})
