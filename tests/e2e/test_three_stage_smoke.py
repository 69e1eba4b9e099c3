"""The three-stage script on arena, for real: a paid judge on the loopback interface, a student, its gate, stage C.

Stopping at any line is tested in `tests/test_three_stage.py` with recorded commands, and with real ones by
`examples/drills/three_stage_drill.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.stores.segments import list_segments
from tests.directories_page import never_there, undocumented
from tests.e2e.command_line import ROOT

SCRIPT = ROOT / "examples" / "three_stage" / "run.sh"

SECONDS = 1500
"""Ten times what two idle cores need: a guard against hanging, not a measurement."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS)]


def start(out: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("RL_RUN_ROOT", None)
    command = ["bash", str(SCRIPT), "smoke", str(out)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS - 100)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the whole script leaves."""
    out = tmp_path_factory.mktemp("three") / "smoke"
    first = start(out)
    assert first.returncode == 0, first.stderr[-4000:]
    return out


def test_a_to_b_to_the_gate_to_c(smoke: Path) -> None:
    assert [segment.kind for segment in list_segments(smoke / "run")] == ["a", "c"]
    gate = json.loads((smoke / "reward_model-0" / layout.GATE).read_text())
    assert gate["ran"] is True
    read_manifest(smoke / "run", schema="run", verify_files=True)
    paid = [json.loads(line)["requests"] for line in (smoke / "run" / layout.TIMINGS).read_text().splitlines()]
    assert all(found["billed"] == found["attempts"] > 0 for found in paid)
    page = (smoke / "report" / layout.REPORT).read_text(encoding="utf-8")
    verdict = "Gate passed" if gate["passed"] else "Gate not passed"
    for part in ("Stages and audits", "Time, memory and money", verdict, "Effect of the place"):
        assert part in page


@pytest.mark.parametrize(
    ("folder", "kind", "optional"),
    [
        ("audit", "audit", set()),
        ("conditions", "conditions", set()),
        ("probe-groups", "groups", set()),
        ("requests", "requests", {"manifest.json", "config.yaml"}),
        ("probe", "probe", {"preview.html", "request.json", "dry_run.json"}),
        ("reward_model-0", "reward_model", {"checkpoints/"}),
        ("run", "run", {"checkpoints/best", "heldout.jsonl", "alarms.jsonl", "tracker/"}),
        ("verify-run", "verify", set()),
        ("report", "report", {"labels/label.html", "labels/key.json"}),
    ],
)
def test_the_page_of_directories_says_what_lies_there(smoke: Path, folder: str, kind: str, optional: set[str]) -> None:
    assert undocumented(smoke / folder, kind) == []
    assert set(never_there(smoke / folder, kind)) <= optional | {"unfinished.json"}
