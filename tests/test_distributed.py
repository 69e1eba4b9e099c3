"""The view of the processes: one alone, and two real ones over loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stateplay_rl.distributed import Processes, start_processes
from stateplay_rl.errors import EXIT_USAGE, UsageError

ROOT = Path(__file__).resolve().parents[1]

SCRIPT = """
import json, sys
from pathlib import Path
import torch
from stateplay_rl.distributed import start_processes
from stateplay_rl.errors import InputError
from stateplay_rl.stages.main_process import on_main

processes = start_processes()
facts = {
    "rank": processes.rank,
    "count": processes.count,
    "main": processes.is_main,
    "mine": [list(pair) for pair in processes.mine(["a", "b", "c"])],
    "broadcast": processes.broadcast({"from": 0} if processes.is_main else None),
    "gather": processes.gather([processes.rank] * processes.rank),
    "sum": processes.sum_(torch.tensor([0.1, 2.0**-60], dtype=torch.float64) * (processes.rank + 1)).tolist(),
    "work": on_main(processes, lambda: "done"),
}

def refuse():
    raise InputError("what was found", "what to run next")

try:
    on_main(processes, refuse)
except InputError as error:
    facts["error"] = [error.what, error.hint]
processes.barrier()
(Path(sys.argv[1]) / f"{processes.rank}.json").write_text(json.dumps(facts))
"""


def test_one_process_alone() -> None:
    processes = start_processes()
    assert (processes.rank, processes.count, processes.is_main) == (0, 1, True)
    assert processes.mine(["a", "b"]) == [(0, "a"), (1, "b")]
    assert processes.broadcast("x") == "x"
    assert processes.gather([1, 2]) == [1, 2]
    tensor = torch.ones(2, dtype=torch.float64)
    assert processes.sum_(tensor) is tensor
    processes.barrier()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_work_is_shared_round_robin_and_nothing_is_done_twice(count: int) -> None:
    items = [f"item-{n}" for n in range(5)]
    shares = [Processes(rank, count, torch.device("cpu")).mine(items) for rank in range(count)]
    assert sorted(pair for share in shares for pair in share) == list(enumerate(items))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_launcher_whose_processes_do_not_know_each_other_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    start_processes()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="2 processes were asked for, accelerate runs 1") as caught:
        start_processes()
    assert caught.value.exit_code == EXIT_USAGE
    assert "torch.distributed.run" in caught.value.hint


def test_two_processes(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*command, str(script), str(tmp_path)], env=env, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (first["main"], second["main"]) == (True, False)
    assert (first["count"], second["count"]) == (2, 2)
    assert (first["mine"], second["mine"]) == ([[0, "a"], [2, "c"]], [[1, "b"]])
    assert (first["work"], second["work"]) == ("done", None)
    for facts in (first, second):
        assert facts["broadcast"] == {"from": 0}
        assert facts["gather"] == [1]
        # float64 all the way: 3 x 2^-60 is not lost.
        assert facts["sum"] == [0.1 + 0.2, 3 * 2.0**-60]
        assert facts["error"] == ["what was found", "what to run next"]
