"""Groups are written while the next one is drawn: order, errors, and what an interruption leaves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stateplay_rl.config.rollout import SamplingConfig
from stateplay_rl.errors import OutsideError
from stateplay_rl.stages import group_writer
from stateplay_rl.stages.candidates import DrawnGroup, RolloutPlan, draw_group, policy_sha256, roll_out_group
from stateplay_rl.stages.group_writer import GroupWriter
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore
from tests.stages.train_nft.helpers import Bench, write_tiny_conditions


@pytest.fixture(scope="module")
def conditions(tmp_path_factory: pytest.TempPathFactory) -> ConditionStore:
    return write_tiny_conditions(tmp_path_factory.mktemp("writer"), passing=3, heldout=0)


@pytest.fixture(scope="module")
def drawn(conditions: ConditionStore) -> list[DrawnGroup]:
    world = Bench().world
    plan = RolloutPlan(0, 0, SamplingConfig(candidates=2, steps=2), "live", policy_sha256(world, "live"), world.sha256)
    return [draw_group(world, conditions, record, plan) for record in conditions.records]


def test_the_same_files_as_without_a_thread(
    conditions: ConditionStore, drawn: list[DrawnGroup], tmp_path: Path
) -> None:
    bench, plain, threaded = Bench(), GroupStore(tmp_path / "plain"), GroupStore(tmp_path / "threaded")
    for group in drawn:
        roll_out_group(bench.world, conditions, group.record, group.plan, plain)
    with GroupWriter(conditions, threaded) as writer:
        told = [stored for group in drawn for stored in writer.put(group)]
        assert [condition for condition, _ in told] == ["c0", "c1"]
        told += writer.finish()
    assert [group_id for _, group_id in told] == [group.group_id for group in drawn]
    assert threaded.hashes() == plain.hashes()


def test_a_group_is_drawn_while_the_one_before_is_written(
    conditions: ConditionStore, drawn: list[DrawnGroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`put` comes back although the write cannot end; the write ends only after the next group was drawn."""
    real, drawing = group_writer.store_group, threading.Event()

    def slow(*arguments: object) -> None:
        assert drawing.wait(60)
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(group_writer, "store_group", slow)
    groups = GroupStore(tmp_path)
    with GroupWriter(conditions, groups) as writer:
        assert writer.put(drawn[0]) == []
        assert groups.finished() == ()
        drawing.set()
        assert writer.put(drawn[1]) == [("c0", drawn[0].group_id)]
    assert len(groups.finished()) == 2


def test_an_error_of_the_thread_comes_with_the_next_group(
    conditions: ConditionStore, drawn: list[DrawnGroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OutsideError("the disk is full", "free some space")

    with GroupWriter(conditions, GroupStore(tmp_path)) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(group_writer, "store_group", full)
            writer.put(drawn[0])
            with pytest.raises(OutsideError, match="disk is full"):
                writer.put(drawn[1])
        assert writer.put(drawn[2]) == []
        assert writer.finish() == [("c2", drawn[2].group_id)]


def test_an_interruption_leaves_whole_groups(
    conditions: ConditionStore, drawn: list[DrawnGroup], tmp_path: Path
) -> None:
    groups = GroupStore(tmp_path)

    def interrupted() -> None:
        with GroupWriter(conditions, groups) as writer:
            writer.put(drawn[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert groups.finished() == (drawn[0].group_id,)
    groups.read(drawn[0].group_id).verify()
