"""Two real processes: a NaN on one rank, drifted weights, errors and deaths of a rank, sharded frozen weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(Path(__file__).with_name("ranks_program.py")), str(out)]
    env = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    files = [out / f"rank-{rank}.json" for rank in (0, 1)]
    assert all(file.is_file() for file in files), done.stdout + done.stderr
    return [json.loads(file.read_text()) for file in files]


def test_a_nan_on_one_rank_skips_the_step_on_both(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["nan"] for rank in ranks)
    assert first == second
    assert (first["applied"], first["skipped"], first["steps"]) == (2, 1, 2)
    assert first["bad"] in first["because"][0]
    assert first["because"][0].startswith("step 0: ")


@pytest.mark.parametrize("mode", ["transition", "coupling"])
def test_sharded_frozen_weights_train_the_same(ranks: list[dict[str, Any]], mode: str) -> None:
    first, second = (rank[f"sharded {mode}"] for rank in ranks)
    assert first["sharded"] == second["sharded"]
    assert first["sharded live"] == second["sharded live"]
    whole, sharded = (torch.tensor(first[name], dtype=torch.float64) for name in ("replicated", "sharded"))
    assert float((whole - sharded).norm() / whole.norm()) < 1e-5
    assert first["sharded export"] == first["replicated export"]
    # Something was sharded, and something was kept whole.
    assert 0 < first["sharded whole"] < first["replicated whole"]


def test_ranks_that_drift_apart_are_found(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "live parameters differ" in rank["drifted"]
        assert "rank 1" in rank["drifted"]


def test_an_error_of_one_rank_is_that_of_all(ranks: list[dict[str, Any]]) -> None:
    assert [rank["told"] for rank in ranks] == ["rank 1: clip 3 is damaged", "clip 3 is damaged"]


def test_a_rank_that_is_left_alone_stops(ranks: list[dict[str, Any]]) -> None:
    assert "another rank has stopped or does not answer" in ranks[0]["left alone"]
