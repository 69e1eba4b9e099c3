"""The scoring queue: order, known verdicts, errors of a judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.errors import CorruptionError
from stateplay_rl.stages.candidates import RolloutPlan, policy_sha256, roll_out_group
from stateplay_rl.stages.train_nft.judging import ScoringQueue
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from tests.stages.train_nft.helpers import Bench, BrightJudge, write_tiny_conditions


@pytest.fixture
def groups(tmp_path: Path) -> list[StoredGroup]:
    bench = Bench()
    conditions = write_tiny_conditions(tmp_path, passing=3, heldout=0, without_clip=[1])
    plan = RolloutPlan(0, 0, bench.config.sampling, "old", policy_sha256(bench.world, "old"), bench.world.sha256)
    store = GroupStore(tmp_path / "groups")
    return [store.read(roll_out_group(bench.world, conditions, r, plan, store)) for r in conditions.records]


def test_results_come_in_the_order_given(groups: list[StoredGroup]) -> None:
    with ScoringQueue(BrightJudge(fails=["c2"]), {}) as queue:
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
    with ScoringQueue(judge, {}) as queue:
        queue.put(groups[0])
        (first,) = queue.results()
    with ScoringQueue(judge, {first.group_id: first.line}) as queue:
        queue.put(groups[0])
        assert queue.results() == [first]
    assert judge.asked == ["c0"]


def test_a_damaged_group_stops_the_run_instead_of_scoring_low(groups: list[StoredGroup]) -> None:
    groups[0].candidate_video(0).write_bytes(b"damaged")
    with ScoringQueue(BrightJudge(), {}) as queue:
        queue.put(groups[0])
        with pytest.raises(CorruptionError, match="does not match its sha256"):
            queue.results()
