"""A checkpoint holds everything: a restored run goes on to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stateplay_rl.errors import InputError
from stateplay_rl.stages.train_nft.state import LOGS, Position, cut_logs, pack, unpack
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.jsonl import LineLog
from tests.stages.train_nft.helpers import Bench

POSITION = Position(3, 24, [(0, 40.5), (2, 55.25)], {"batch": 0, "diversity": 1.5})


def trained() -> Bench:
    bench = Bench()
    bench.updater.run([bench.samples(), bench.samples()], 0, 2)
    bench.world.policies.update_old(0.002)
    bench.updater.bad_in_a_row = 2
    return bench


def test_everything_survives_bit_for_bit(tmp_path: Path) -> None:
    first = trained()
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(3, pack(first.world, first.updater, POSITION, tmp_path))
    second = Bench()
    assert unpack(store.load(), second.world, second.updater) == POSITION
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
    payload = pack(bench.world, bench.updater, Position(), tmp_path)
    assert dict(payload.optimizer) == {}
    CheckpointStore(tmp_path / "c").save(0, payload)
    assert unpack(CheckpointStore(tmp_path / "c").load(), bench.world, bench.updater) == Position()


def test_another_world_is_refused(tmp_path: Path) -> None:
    bench = Bench()
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(0, pack(bench.world, bench.updater, Position(), tmp_path))
    bench.world.sha256 = "f" * 64
    with pytest.raises(InputError, match="world"):
        unpack(store.load(), bench.world, bench.updater)


def test_lines_of_work_that_is_done_again_are_cut_off(tmp_path: Path) -> None:
    bench = Bench()
    for name in LOGS:
        LineLog(tmp_path / name).append({"batch": 0})
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, pack(bench.world, bench.updater, Position(1), tmp_path))
    for name in LOGS:
        LineLog(tmp_path / name).append({"batch": 1})
    cut_logs(store.load(), tmp_path)
    assert [LineLog(tmp_path / name).read() for name in LOGS] == [[{"batch": 0}]] * len(LOGS)
