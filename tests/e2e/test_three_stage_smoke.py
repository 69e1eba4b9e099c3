"""The three-stage script on arena, for real: a paid judge on the loopback interface, a student, its gate, stage C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.stores.segments import list_segments
from tests.e2e.command_line import ROOT

SCRIPT = ROOT / "examples" / "three_stage" / "run.sh"
STUDENT = ROOT / "examples" / "student" / "arena.yaml"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("audits" not in TrainNftConfig.model_fields, reason="stage C of train-nft is not there yet"),
    pytest.mark.skipif(not STUDENT.is_file(), reason="train-rm is not there yet"),
]


def start(out: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("RL_RUN_ROOT", None)
    command = ["bash", str(SCRIPT), "smoke", str(out)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=540)


def test_a_to_b_to_the_gate_to_c_and_again(tmp_path: Path) -> None:
    out = tmp_path / "smoke"
    first = start(out)
    assert first.returncode == 0, first.stderr[-4000:]
    kinds = [segment.kind for segment in list_segments(out / "run")]
    assert kinds == ["a", "c"]
    gate = json.loads((out / "reward_model-0" / layout.GATE).read_text())
    assert gate["ran"] is True
    read_manifest(out / "run", schema="run", verify_files=True)
    seals = {path: path.stat().st_mtime_ns for path in out.glob("*/manifest.json") if path.parent.name != "report"}
    again = start(out)
    assert again.returncode == 0, again.stderr[-4000:]
    unchanged = {path for path, when in seals.items() if path.stat().st_mtime_ns == when}
    assert {path.parent.name for path in set(seals) - unchanged} <= {"verify-run"}
