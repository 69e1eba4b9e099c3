"""Sizes of batches, and what a hand-made batch must be before anything is touched."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from stateplay_rl.config.rollout import RolloutConfig
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.errors import InputError
from stateplay_rl.judges.base import GroupVerdict
from stateplay_rl.stages.candidates import RolloutPlan, policy_sha256, roll_out_group
from stateplay_rl.stages.train_nft.batches import BatchWork, OnPolicyBatches, in_order
from stateplay_rl.stages.train_nft.hand_made import HandMadeBatch
from stateplay_rl.stages.train_nft.in_flight import InFlight, Judges
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stages.verdicts import verdict_line, write_score_table
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupRow, GroupStore, StoredGroup, write_groups_parquet
from stateplay_rl.stores.ledger import Ledger
from tests.stages.train_nft.helpers import ONE, Bench, BrightJudge, judged, make_config, open_out, write_tiny_conditions


@dataclass
class Made:
    bench: Bench
    conditions: ConditionStore
    root: Path

    def groups(self, name: str, ids: Sequence[str] = ("c0", "c1"), candidates: int = 2, batch: int = 0) -> Path:
        """A sealed groups/ directory of the base policy."""
        world, path = self.bench.world, self.root / name
        if path.exists():
            return path
        sampling = self.bench.config.sampling.model_copy(update={"candidates": candidates})
        plan = RolloutPlan(0, batch, sampling, "old", policy_sha256(world, "old"), world.sha256)
        with open_out(path, "groups", RolloutConfig()) as out:
            store = GroupStore(path)
            rows = [
                GroupRow.of(store.read(roll_out_group(world, self.conditions, self.conditions.by_id(i), plan, store)))
                for i in ids
            ]
            write_groups_parquet(path / layout.GROUPS, rows)
            out.seal()
        return path

    def scores(self, groups: Path, of: Path | None = None) -> Path:
        """A sealed scores/ directory of `groups`."""
        path = self.root / f"scores-{groups.name}"
        if path.exists():
            return path
        store = GroupStore(groups)
        stored = [store.read(group_id) for group_id in store.finished()]
        with open_out(path, "scores", RolloutConfig()) as out:
            write_score_table(path / layout.SCORES, [verdict_line(group, BrightJudge()) for group in stored])
            out.seal(extra={"group_sha256": {group.record.group_id: group.sha256 for group in stored}})
        return path

    def batch(self, groups: Path, scores: Path, **changes: object) -> HandMadeBatch:
        config = make_config(**changes)
        return HandMadeBatch(config, ONE, groups, scores, self.root / "run", self.conditions, fresh=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("batches")
    return Made(Bench(), write_tiny_conditions(root, passing=3, heldout=1), root)


def on_policy(made: Made, bench: Bench, judge: BrightJudge, folder: Path, config: TrainNftConfig) -> OnPolicyBatches:
    plan = SegmentPlan("a", 0, 0, config.stage_conditions, config.conditions_per_batch)
    groups, in_flight = GroupStore(folder / "groups"), InFlight(folder)
    return OnPolicyBatches(plan, bench.world, made.conditions, Judges(judge), config, ONE, groups, in_flight)


def test_the_last_batch_may_be_smaller(made: Made, tmp_path: Path) -> None:
    config = make_config(stage_conditions=3, conditions_per_batch=2)
    source = on_policy(made, made.bench, BrightJudge(), tmp_path, config)
    assert source.batches() == 2
    with Ledger.create(tmp_path / "ledger.sqlite", ["c0", "c1", "c2"]) as ledger:
        assert source.reserve(ledger, 0) == ("c0", "c1")
        assert source.reserve(ledger, 1) == ("c2",)
        assert source.reserve(ledger, 0) == ("c0", "c1")


def test_groups_are_rolled_out_under_old_and_judged_once(made: Made, tmp_path: Path) -> None:
    bench, judge = Bench(), BrightJudge()
    bench.nudge("live", 0.3)
    store = GroupStore(tmp_path / "groups")
    source = on_policy(made, bench, judge, tmp_path, make_config())
    seen: list[tuple[str, str, bool]] = []
    first = source.judged(BatchWork(0, ("c1", "c0"), {}, progress=lambda *facts: seen.append(facts)))
    assert [g.condition_id for g in first] == ["c1", "c0"]
    assert all(g.reason is None and len(g.scores) == 2 for g in first)
    assert {store.read(i).record.policy_sha256 for i in store.finished()} == {policy_sha256(bench.world, "old")}
    # Rank 0 hears of every finished group, and that both are judged in the end.
    assert {(c, g) for c, g, _ in seen} == {(g.condition_id, g.group_id) for g in first}
    assert {(c, judged) for c, _, judged in seen[-2:]} == {("c0", True), ("c1", True)}
    known = {"training": {g.group_id: g.line for g in first}}
    assert source.judged(BatchWork(0, ("c1", "c0"), known)) == first
    assert judge.asked == ["c1", "c0"]


class LateJudge(BrightJudge):
    """Answers about the first group only once the second one is on disk."""

    def __init__(self, store: GroupStore) -> None:
        super().__init__()
        self.store = store
        self.saw_two = False

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        if not self.asked:
            for _ in range(600):
                if len(self.store.finished()) > 1:
                    self.saw_two = True
                    break
                time.sleep(0.05)
        return super().score_group(group)


def test_a_group_is_judged_while_the_next_one_is_sampled(made: Made, tmp_path: Path) -> None:
    """The judge of the first group waits for the second to be sampled: without overlap it would wait in vain."""
    judge = LateJudge(GroupStore(tmp_path / "groups"))
    found = on_policy(made, Bench(), judge, tmp_path, make_config()).judged(BatchWork(0, ("c0", "c1"), {}))
    assert judge.saw_two
    assert judge.asked == ["c0", "c1"]
    assert [group.condition_id for group in found] == ["c0", "c1"]


def test_a_hand_made_batch_replays_its_scores(made: Made) -> None:
    groups = made.groups("plain")
    batch = made.batch(groups, made.scores(groups))
    batch.check(made.bench.world)
    assert (batch.batches(), batch.is_trained) == (1, False)
    found = batch.judged(BatchWork(0, ("c1", "c0"), {}))
    assert [g.condition_id for g in found] == ["c1", "c0"]
    assert all(g.line["judge_id"] == "replay(bright)" for g in found)
    assert batch.read(found[0].group_id).record.condition_id == "c1"


def test_groups_of_other_settings_are_refused(made: Made) -> None:
    groups = made.groups("plain")
    scores = made.scores(groups)
    for changes, what in (
        ({"sampling": {"candidates": 3, "steps": 3}}, "candidates is 2, this run has 3"),
        ({"sampling": {"candidates": 2, "steps": 4}}, "sampling steps is 3, this run has 4"),
        ({"sampling": {"candidates": 2, "steps": 3, "solver": "ab2"}}, "sampler is euler, this run has ab2"),
        (
            {"sampling": {"candidates": 2, "steps": 3, "cache": "taylor"}},
            r"sampler is euler, this run has euler\+taylor3",
        ),
    ):
        with pytest.raises(InputError, match=what):
            made.batch(groups, scores, **changes).check(made.bench.world)
    other = Bench()
    other.world.sha256 = "f" * 64
    with pytest.raises(InputError, match="world is"):
        made.batch(groups, scores).check(other.world)


def test_off_policy_groups_need_consent(made: Made) -> None:
    groups = made.groups("plain")
    moved = Bench()
    moved.nudge("old")
    with pytest.raises(InputError, match="was sampled by policy") as caught:
        made.batch(groups, made.scores(groups)).check(moved.world)
    assert "--off-policy" in caught.value.hint
    made.batch(groups, made.scores(groups), off_policy=True).check(moved.world)


def test_scores_of_other_groups_are_refused(made: Made) -> None:
    other = made.scores(made.groups("other", batch=1))
    with pytest.raises(InputError, match="holds no verdict on group") as caught:
        made.batch(made.groups("plain"), other)
    assert "sprl score" in caught.value.hint


def test_held_out_conditions_are_never_trained_on(made: Made) -> None:
    groups = made.groups("heldout", ids=("c3",))
    with pytest.raises(InputError, match="held-out condition c3"):
        made.batch(groups, made.scores(groups))


def test_results_come_in_the_order_of_the_members() -> None:
    groups = [judged(2), judged(0), judged(1)]
    assert [g.condition_id for g in in_order(groups, ("c0", "c1", "c2"))] == ["c0", "c1", "c2"]
