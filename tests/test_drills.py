"""The drills and benchmarks that need several processes, in their short form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command_line import ROOT, environment

pytestmark = pytest.mark.slow


def run(*arguments: object, ranks: int = 1) -> str:
    launcher = [sys.executable]
    env = environment()
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        env["ACCELERATE_USE_CPU"] = "true"
    env.pop("RL_RUN_ROOT", None)
    done = subprocess.run([*launcher, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_short_kill_drill_ends_equal(tmp_path: Path) -> None:
    script = ROOT / "examples" / "drills" / "kill_drill.py"
    sizes = ("--kills", 4, "--seed", 3, "--conditions", 5, "--per-batch", 2)
    text = run(script, "--out", tmp_path / "drill", *sizes)
    result = json.loads((tmp_path / "drill" / "drill.json").read_text())
    assert (len(result["kills"]), result["differences"], result["equal"]) == (4, [], "to the byte")
    assert result["results_compared"] > 10
    assert "all equal" in text


def test_a_batch_on_two_ranks(tmp_path: Path) -> None:
    """The GPU benchmark under gloo: the big world's structure in bfloat16 with checkpointing, both modes, uneven
    shares, equal hashes; and the same batch on each rank alone."""
    script = ROOT / "examples" / "benchmarks" / "two_gpus.py"
    out = tmp_path / "two.json"
    sizes = ("--worlds", "stateplay-5b", "--shrink", "--frames", 17, "--steps", 2, "--checkpointing")
    text = run(script, "--out", out, *sizes, "--alone", "transition", ranks=2)
    value: dict[str, Any] = json.loads(out.read_text())
    assert (value["ranks"], value["passed"]) == (2, True)
    assert [r["mode"] for r in value["results"]] == ["transition", "coupling"]
    for result in value["results"]:
        assert all(result[name] for name in ("equal_hashes", "finite", "moved"))
        assert result["optimizer_steps"] == 2
        assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
        assert all(rank["seconds"]["train"] > 0 for rank in result["ranks"])
    for rank in value["results"][0]["ranks"]:
        assert rank["alone"]["latents_equal"]
        assert rank["alone"]["largest_weight_difference"] <= 1e-6
    assert "times faster" in text
    assert text.count("equal") >= 2
