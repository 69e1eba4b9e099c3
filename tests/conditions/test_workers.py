"""Many rows at once: nothing is lost, also when a worker dies."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from stateplay_rl.conditions import workers
from stateplay_rl.conditions.examine import Outcome
from stateplay_rl.conditions.source import SourceRow, read_csv
from stateplay_rl.conditions.workers import ExamineJob, examine_rows
from stateplay_rl.errors import OutsideError
from tests.conditions.clip_factory import arena_config, make_rows, write_csv

KILLERS = (7, 31)


def examine_or_die(row: SourceRow, key: str) -> Outcome:
    """Stands for a decoder that takes its process along."""
    if row.row in KILLERS:
        os._exit(11)
    return Outcome(row.row, key, "one_frame", "")


def job(tmp_path: Path, count: int) -> ExamineJob:
    return ExamineJob(tmp_path, arena_config().clip, tmp_path, {row: f"key{row}" for row in range(1, count + 1)})


@pytest.mark.parametrize("count", [3, 60])
def test_every_row_has_one_outcome(tmp_path: Path, count: int) -> None:
    rows = [SourceRow(row, "x", video="none.mp4", actions="none", distribution="n") for row in range(1, count + 1)]
    outcomes = list(examine_rows(rows, job(tmp_path, count), 2))
    assert sorted(outcome.row for outcome in outcomes) == list(range(1, count + 1))
    assert {outcome.code for outcome in outcomes} == {"missing_actions"}
    assert all(outcome.key == f"key{outcome.row}" for outcome in outcomes)


def test_rows_that_kill_their_process_are_rejected_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_examine_here", examine_or_die)
    rows = [SourceRow(row, "x") for row in range(1, 41)]
    outcomes = {outcome.row: outcome for outcome in examine_rows(rows, job(tmp_path, 40), 2)}
    assert sorted(outcomes) == list(range(1, 41))
    assert {row for row, outcome in outcomes.items() if outcome.code == "decoder_crashed"} == set(KILLERS)


def die(job: ExamineJob) -> None:
    """Stands for workers that cannot start."""
    os._exit(9)


def test_workers_that_cannot_start_are_no_fault_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_start", die)
    with pytest.raises(OutsideError, match="worker processes die"):
        list(examine_rows([SourceRow(1, "x")], job(tmp_path, 1), 1))


def test_a_table_that_makes_the_library_abort_is_one_rejected_row(tmp_path: Path) -> None:
    """Byte flips in Parquet statistics end the process inside the library: no exception to catch."""
    rows = make_rows(tmp_path, 3)
    source = read_csv(write_csv(tmp_path / "m.csv", rows))
    for name in ("frames", "actions", "states"):
        (tmp_path / "out" / name).mkdir(parents=True)
    path = tmp_path / "clip001" / "actions.parquet"
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(0)
    for position in random.integers(len(data) // 2, len(data), 40):
        data[position] = random.integers(256)
    path.write_bytes(bytes(data))
    keys = {row.row: "k" for row in source.rows}
    shared = ExamineJob(source.data_root, arena_config().clip, tmp_path / "out", keys)
    outcomes = {outcome.row: outcome.code for outcome in examine_rows(source.rows, shared, 1)}
    assert outcomes[2] in ("unreadable_actions", "decoder_crashed", "actions_too_large")
    assert (outcomes[1], outcomes[3]) == ("", "")
