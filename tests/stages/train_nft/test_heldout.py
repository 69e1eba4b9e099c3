"""Held-out evaluation on the tiny world: paired noise, failures, resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateplay_rl.errors import InputError
from stateplay_rl.stages.train_nft.heldout import Evaluation, Occasion, choose_heldout, evaluate, heldout_judge
from stateplay_rl.stages.train_nft.in_flight import Judges
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore
from tests.stages.train_nft.helpers import ONE, Bench, BrightJudge, make_config, write_tiny_conditions

HELDOUT = 3


@pytest.fixture(scope="module")
def conditions(tmp_path_factory: pytest.TempPathFactory) -> ConditionStore:
    return write_tiny_conditions(tmp_path_factory.mktemp("heldout"), passing=1, heldout=HELDOUT)


@pytest.fixture(scope="module")
def bench() -> Bench:
    bench = Bench(heldout={"conditions": HELDOUT, "samples": 3, "seed": 11})
    bench.nudge("live", 0.2)
    return bench


def go(
    bench: Bench,
    conditions: ConditionStore,
    run: Path,
    judge: BrightJudge,
    policy: str = "live",
    stage: str = "a",
    referee: BrightJudge | None = None,
) -> Evaluation:
    return evaluate(
        bench.world,
        conditions,
        Judges(judge, referee=referee),
        bench.config,
        ONE,
        run,
        Occasion(4, 29, policy, stage),  # type: ignore[arg-type]
    )


def test_the_line_and_its_groups(bench: Bench, conditions: ConditionStore, tmp_path: Path) -> None:
    result = go(bench, conditions, tmp_path, BrightJudge())
    line = dict(result.line)
    json.dumps(line, allow_nan=False)
    assert (line["batch"], line["policy"], line["candidates_seen"]) == (4, "live", 29)
    assert (line["conditions"], line["failed"], line["samples"]) == (HELDOUT, 0, 3)
    assert set(line["scores"]) == {"c1", "c2", "c3"}
    values = [score for row in line["scores"].values() for score in row]
    assert len(values) == 9
    assert line["reward_mean"] == pytest.approx(sum(values) / 9)
    assert result.reward_mean == line["reward_mean"]
    low, high = line["ci95"]
    assert low <= line["reward_mean"] <= high
    assert set(line["by_class"]) == {"normal", "macro_hit"}
    assert line["frozen_display_share"] is None
    assert len(GroupStore(tmp_path / line["groups"]).finished()) == HELDOUT


def test_policies_are_compared_on_the_same_noise(bench: Bench, conditions: ConditionStore, tmp_path: Path) -> None:
    found = {}
    for policy in ("live", "reference"):
        line = go(bench, conditions, tmp_path, BrightJudge(), policy).line
        store = GroupStore(tmp_path / line["groups"])
        records = [store.read(group_id).record for group_id in store.finished()]
        found[policy] = {record.condition_id: record for record in records}
    for condition_id, record in found["live"].items():
        other = found["reference"][condition_id]
        assert record.seeds == other.seeds
        assert record.policy_sha256 != other.policy_sha256
        assert record.latents_sha256 != other.latents_sha256


def test_a_second_call_asks_for_nothing_again(bench: Bench, conditions: ConditionStore, tmp_path: Path) -> None:
    judge = BrightJudge()
    first = go(bench, conditions, tmp_path, judge)
    assert len(judge.asked) == HELDOUT
    assert go(bench, conditions, tmp_path, judge).line == first.line
    assert len(judge.asked) == HELDOUT


def test_failed_judgements_are_counted_and_left_out(bench: Bench, conditions: ConditionStore, tmp_path: Path) -> None:
    line = go(bench, conditions, tmp_path, BrightJudge(fails=["c2"])).line
    assert (line["conditions"], line["failed"]) == (2, 1)
    assert set(line["scores"]) == {"c1", "c3"}
    none = go(bench, conditions, tmp_path / "none", BrightJudge(fails=["c1", "c2", "c3"]))
    assert (none.reward_mean, none.line["reward_mean"], none.line["failed"]) == (None, None, 3)
    json.dumps(dict(none.line), allow_nan=False)


def test_more_than_the_pool_holds_is_refused(conditions: ConditionStore) -> None:
    assert [r.condition_id for r in choose_heldout(conditions, 2)] == ["c1", "c2"]
    with pytest.raises(InputError, match="3 held-out conditions, 4 are asked for"):
        choose_heldout(conditions, 4)


def test_the_referee_is_measured_beside_the_judge(bench: Bench, conditions: ConditionStore, tmp_path: Path) -> None:
    alone = go(bench, conditions, tmp_path / "alone", BrightJudge())
    watched = go(bench, conditions, tmp_path / "watched", BrightJudge(), referee=BrightJudge(factor=3.0))
    assert alone.referee_mean is None
    assert watched.reward_mean == alone.reward_mean
    assert watched.line["referee_mean"] == watched.referee_mean != watched.reward_mean
    assert (tmp_path / "watched" / watched.line["groups"] / "referee.jsonl").is_file()


def test_two_stages_never_share_a_folder(bench: Bench, conditions: ConditionStore, tmp_path: Path) -> None:
    """The student judges at the very point at which stage A's judge did."""
    first = go(bench, conditions, tmp_path, BrightJudge())
    other = BrightJudge(factor=3.0)
    other.judge_id, other.protocol_sha256 = "student", "1" * 64
    second = go(bench, conditions, tmp_path, other, stage="c")
    assert first.line["groups"] != second.line["groups"]
    assert (first.line["judge_id"], second.line["judge_id"]) == ("bright", "student")


def test_an_api_is_asked_within_its_own_budget_only() -> None:
    judge, referee = BrightJudge(), BrightJudge()
    api = {"judge": {"name": "openai"}, "heldout": {"conditions": 3}}
    watched, alone = Judges(judge, referee=referee), Judges(judge)
    assert heldout_judge(alone, make_config(heldout={"conditions": 3}), 0) is judge
    assert heldout_judge(alone, make_config(**api), 0) is None
    assert heldout_judge(watched, make_config(**api), 0) is referee
    for used, expected in ((0, judge), (3, judge), (4, None)):
        assert heldout_judge(alone, make_config(**api, heldout_requests=6), used) is expected
