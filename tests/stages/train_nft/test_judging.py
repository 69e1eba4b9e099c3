"""The scoring queue: order, known verdicts, errors of a judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.config.train_nft import JudgingConfig
from stateplay_rl.errors import EXIT_OUTSIDE, CorruptionError, OutsideError, UsageError
from stateplay_rl.stages.candidates import RolloutPlan, policy_sha256, roll_out_group
from stateplay_rl.stages.train_nft.in_flight import InFlight, Judges, Lines
from stateplay_rl.stages.train_nft.judging import ScoringQueue, workers_per_rank
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from tests.stages.train_nft.helpers import Bench, BrightJudge, make_config, write_tiny_conditions


def scoring(judge: BrightJudge, known: Lines | None = None, **more: Any) -> ScoringQueue:
    settings = JudgingConfig(retry_seconds=0.01, outage_hours=more.pop("outage_hours", 1.0))
    return ScoringQueue(
        Judges(judge, more.pop("audit", None), more.pop("referee", None)), known or {}, settings, **more
    )


@pytest.fixture
def groups(tmp_path: Path) -> list[StoredGroup]:
    bench = Bench()
    conditions = write_tiny_conditions(tmp_path, passing=3, heldout=0, without_clip=[1])
    plan = RolloutPlan(0, 0, bench.config.sampling, "old", policy_sha256(bench.world, "old"), bench.world.sha256)
    store = GroupStore(tmp_path / "groups")
    return [store.read(roll_out_group(bench.world, conditions, r, plan, store)) for r in conditions.records]


def test_results_come_in_the_order_given(groups: list[StoredGroup]) -> None:
    with scoring(BrightJudge(fails=["c2"])) as queue:
        for group in reversed(groups):
            queue.put(group)
        found = queue.results()
    assert [g.condition_id for g in found] == ["c2", "c1", "c0"]
    assert found[0].scores == (None, None)
    assert found[0].reason == "no_json: planted"
    assert found[1].picture_real is None
    assert found[2].picture_real is not None
    assert found[2].picture_real["motion"] > 0
    assert set(found[2].picture) == {"luma", "saturation", "motion", "diversity"}
    assert queue.results() == []


def test_a_known_verdict_is_not_asked_for_again(groups: list[StoredGroup]) -> None:
    judge = BrightJudge()
    with scoring(judge) as queue:
        queue.put(groups[0])
        (first,) = queue.results()
    with scoring(judge, {"training": {first.group_id: first.line}}) as queue:
        queue.put(groups[0])
        assert queue.results() == [first]
    assert judge.asked == ["c0"]


def test_a_damaged_group_stops_the_run_instead_of_scoring_low(groups: list[StoredGroup]) -> None:
    groups[0].candidate_video(0).write_bytes(b"damaged")
    with scoring(BrightJudge()) as queue:
        queue.put(groups[0])
        with pytest.raises(CorruptionError, match="does not match its sha256"):
            queue.results()


def test_a_judge_that_is_down_is_waited_for(groups: list[StoredGroup]) -> None:
    judge = BrightJudge()
    with scoring(judge) as queue:
        queue.put(groups[0])
        (plain,) = queue.results()
    judge.down_for = 3
    with scoring(judge) as queue:
        queue.put(groups[0])
        assert queue.results() == [plain]
        assert queue.trouble is None
    assert judge.asked == ["c0"] * 5


def test_waiting_has_an_end_and_loses_no_verdict(groups: list[StoredGroup], tmp_path: Path) -> None:
    """The first group is judged, the second meets an outage: the verdict is on disk, and asked for once only."""
    judge = BrightJudge()
    in_flight = InFlight(tmp_path / "segment")
    with scoring(judge, in_flight=in_flight, outage_hours=0.05 / 3600) as queue:
        queue.put(groups[0])
        (first,) = queue.results()
        judge.down_for = 10**6
        queue.put(groups[1])
        with pytest.raises(OutsideError, match=r"is down, waited for .*connection refused") as caught:
            queue.results()
    assert caught.value.exit_code == EXIT_OUTSIDE
    assert "--resume" in caught.value.hint
    known = in_flight.known("training", judge)
    assert known == {first.group_id: first.line}
    judge.down_for, judge.asked = 0, []
    with scoring(judge, {"training": known}, in_flight=in_flight) as queue:
        for group in groups[:2]:
            queue.put(group)
        assert queue.results()[0] == first
    assert judge.asked == ["c1"]


def test_nobody_waits_for_a_judge_when_the_run_ends_for_another_reason(groups: list[StoredGroup]) -> None:
    judge = BrightJudge()
    judge.down_for = 10**6
    settings = JudgingConfig(retry_seconds=600.0)
    with pytest.raises(KeyboardInterrupt):
        end_while_down(ScoringQueue(Judges(judge), {}, settings), groups[0])


def end_while_down(queue: ScoringQueue, group: StoredGroup) -> None:
    with queue:
        queue.put(group)
        while queue.trouble is None:
            assert queue.wait(0.01) == 1
        raise KeyboardInterrupt


def test_audit_and_referee_never_touch_the_scores_that_train(groups: list[StoredGroup]) -> None:
    judge, audit, referee = BrightJudge(), BrightJudge(factor=5.0), BrightJudge(factor=7.0)
    with scoring(judge, audit=audit, referee=referee) as queue:
        queue.put(groups[0], audited=True)
        queue.put(groups[1])
        first, second = queue.results()
    with scoring(judge) as queue:
        queue.put(groups[0])
        (alone,) = queue.results()
    assert first.scores == alone.scores
    assert first.audit is not None
    assert tuple(first.audit["scores"]) != first.scores
    assert second.audit is None
    assert audit.asked == ["c0"]
    assert sorted(referee.asked) == ["c0", "c1"]


def test_verdicts_in_flight_of_another_judge_are_refused(groups: list[StoredGroup], tmp_path: Path) -> None:
    in_flight = InFlight(tmp_path)
    with scoring(BrightJudge(), in_flight=in_flight) as queue:
        queue.put(groups[0])
        queue.results()
    other = BrightJudge()
    other.protocol_sha256 = "0" * 64
    with pytest.raises(UsageError, match="two judges are never mixed"):
        in_flight.known("training", other)
    next(in_flight.folder.iterdir()).write_text("{")
    with pytest.raises(CorruptionError, match="damaged"):
        in_flight.known("training", BrightJudge())
    in_flight.clear()
    assert in_flight.known("training", other) == {}


@pytest.mark.parametrize(
    ("changes", "ranks", "expected"),
    [
        ({"judge": {"name": "openai"}}, 1, 28),
        ({"judge": {"name": "openai"}}, 7, 4),
        ({"judge": {"name": "openai"}, "judging": {"in_flight": 30}}, 4, 8),
        ({}, 7, 1),
        ({"judging": {"in_flight": 6}}, 2, 3),
    ],
)
def test_groups_in_flight_are_a_number_over_all_ranks(changes: dict[str, Any], ranks: int, expected: int) -> None:
    assert workers_per_rank(make_config(**changes), ranks) == expected
