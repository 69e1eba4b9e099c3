"""A checkpoint holds everything: a restored run goes on to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stateplay_rl.errors import InputError
from stateplay_rl.stages.train_nft.average import EvaluationAverage
from stateplay_rl.stages.train_nft.state import LOGS, Position, cut_logs, ledger_position, pack, unpack
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.worlds.policy_bank import sha256_tensors
from tests.stages.train_nft.helpers import Bench

POSITION = Position(
    3, 24, [(0, 40.5), (2, 55.25)], {"batch": 0, "diversity": 1.5}, [None, 3.5], "a" * 64, 61.5, heldout_requests=8
)


def trained() -> Bench:
    bench = Bench()
    bench.updater.run([bench.samples(), bench.samples()], 0, 2)
    bench.world.policies.update_old(0.002)
    bench.updater.bad_in_a_row = 2
    return bench


def test_everything_survives_bit_for_bit(tmp_path: Path) -> None:
    first = trained()
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(3, pack(first.world, first.updater, POSITION, tmp_path, None, None))
    second = Bench()
    assert unpack(store.load(), second.world, second.updater, None) == POSITION
    for policy in ("live", "old", "reference"):
        assert second.world.policies.sha256(policy) == first.world.policies.sha256(policy)
    assert (second.updater.optimizer_steps, second.updater.bad_in_a_row) == (2, 2)
    for a, b in zip(first.parameters, second.parameters, strict=True):
        for moment in ("exp_avg", "exp_avg_sq", "step"):
            left = first.updater.optimizer.state[a][moment]
            assert torch.equal(left, second.updater.optimizer.state[b][moment])
    for bench in (first, second):
        bench.updater.run([bench.samples()], 1, 1)
    assert first.world.policies.sha256("live") == second.world.policies.sha256("live")


def test_the_average_survives_too(tmp_path: Path) -> None:
    first = trained()
    average = EvaluationAverage(first.world, 0.5)
    first.updater.run([first.samples()], 1, 1)
    average.update()
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(3, pack(first.world, first.updater, POSITION, tmp_path, None, average))
    second = Bench()
    restored = EvaluationAverage(second.world, 0.5)
    unpack(store.load(), second.world, second.updater, restored)
    for name, value in average.state().items():
        assert torch.equal(value, restored.state()[name])
    # Not the live policy, and not tied to it.
    live = second.world.policies.state("live")
    assert any(not torch.equal(value, live[name]) for name, value in restored.state().items())
    # Switched on later: it begins at the checkpoint's live policy.
    store.save(4, pack(first.world, first.updater, POSITION, tmp_path, None, None))
    late = EvaluationAverage(second.world, 0.5)
    unpack(store.load(), second.world, second.updater, late)
    assert sha256_tensors(late.state()) == first.world.policies.sha256("live")


def test_a_checkpoint_tells_the_batch_in_flight(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.sqlite", ["a", "b", "c"]) as ledger:
        ledger.reserve(0, 1)
        ledger.mark(0, "a", "failed", reason="planted")
        between = ledger_position(ledger, 1)
        assert between["in_flight"] == {"batch": None, "conditions": []}
        ledger.reserve(1, 2)
        ledger.mark(1, "b", "rolled", "g1")
        within = ledger_position(ledger, 1)
    assert within["counts"]["failed"] == 1
    assert within["in_flight"]["batch"] == 1
    assert [(c["condition_id"], c["state"], c["group_id"]) for c in within["in_flight"]["conditions"]] == [
        ("b", "rolled", "g1"),
        ("c", "reserved", None),
    ]
    assert between["sha256"] != within["sha256"]


def test_rewards_of_two_judges_are_never_compared() -> None:
    position = Position(3, 24, [(0, 90.0)], None, [None], "a" * 64, 88.0)
    position.begin_judge("a" * 64)
    assert position.rewards == [(0, 90.0)]
    position.begin_judge("b" * 64)
    assert (position.rewards, position.referee, position.best_reward) == ([], [], None)


def test_moments_matter(tmp_path: Path) -> None:
    """Without its moments a restored optimizer takes another step: the test above can fail."""
    first, second = trained(), Bench()
    second.world.policies.load("live", first.world.policies.state("live"))
    second.world.policies.load("old", first.world.policies.state("old"))
    for bench in (first, second):
        bench.updater.run([bench.samples()], 1, 1)
    assert first.world.policies.sha256("live") != second.world.policies.sha256("live")


def test_a_checkpoint_before_the_first_step_has_no_moments(tmp_path: Path) -> None:
    bench = Bench()
    payload = pack(bench.world, bench.updater, Position(), tmp_path, None, None)
    assert dict(payload.optimizer) == {}
    CheckpointStore(tmp_path / "c").save(0, payload)
    assert unpack(CheckpointStore(tmp_path / "c").load(), bench.world, bench.updater, None) == Position()


def test_another_world_is_refused(tmp_path: Path) -> None:
    bench = Bench()
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(0, pack(bench.world, bench.updater, Position(), tmp_path, None, None))
    bench.world.sha256 = "f" * 64
    with pytest.raises(InputError, match="world"):
        unpack(store.load(), bench.world, bench.updater, None)


def test_lines_of_work_that_is_done_again_are_cut_off(tmp_path: Path) -> None:
    bench = Bench()
    for name in LOGS:
        LineLog(tmp_path / name).append({"batch": 0})
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, pack(bench.world, bench.updater, Position(1), tmp_path, None, None))
    for name in LOGS:
        LineLog(tmp_path / name).append({"batch": 1})
    cut_logs(store.load(), tmp_path)
    assert [LineLog(tmp_path / name).read() for name in LOGS] == [[{"batch": 0}]] * len(LOGS)
