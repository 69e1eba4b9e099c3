"""Held-out evaluation on the tiny world: paired noise, failures, resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateplay_rl.errors import InputError
from stateplay_rl.stages.train_nft.heldout import Evaluation, choose_heldout, evaluate
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore
from tests.stages.train_nft.helpers import ONE, Bench, BrightJudge, write_tiny_conditions

HELDOUT = 3


@pytest.fixture(scope="module")
def conditions(tmp_path_factory: pytest.TempPathFactory) -> ConditionStore:
    return write_tiny_conditions(tmp_path_factory.mktemp("heldout"), passing=1, heldout=HELDOUT)


@pytest.fixture(scope="module")
def bench() -> Bench:
    bench = Bench(heldout={"conditions": HELDOUT, "samples": 3, "seed": 11})
    bench.nudge("live", 0.2)
    return bench


def go(bench: Bench, conditions: ConditionStore, run: Path, judge: BrightJudge, policy: str = "live") -> Evaluation:
    return evaluate(
        bench.world,
        conditions,
        judge,
        bench.config,
        ONE,
        run,
        batches_done=4,
        candidates_seen=29,
        policy=policy,  # type: ignore[arg-type]
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
    with pytest.raises(InputError, match="not one group was judged"):
        go(bench, conditions, tmp_path / "none", BrightJudge(fails=["c1", "c2", "c3"]))


def test_more_than_the_pool_holds_is_refused(conditions: ConditionStore) -> None:
    assert [r.condition_id for r in choose_heldout(conditions, 2)] == ["c1", "c2"]
    with pytest.raises(InputError, match="3 held-out conditions, 4 are asked for"):
        choose_heldout(conditions, 4)
