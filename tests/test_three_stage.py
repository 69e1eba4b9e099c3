"""The three-stage script: its order, its gate, and that it may stop at any line. Commands are recorded, not run.

The real commands run in `tests/e2e/test_three_stage_smoke.py`.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "three_stage" / "run.sh"
STAND_IN = """#!{python}
# Stands in for `python` in the script: writes what a command would leave, and a line of what was asked.
import json, os, subprocess, sys, time
from pathlib import Path
root = Path(os.environ["STAND_IN_ROOT"])
args = sys.argv[1:]
if args[0] in ("-", "-c"):
    sys.exit(subprocess.call([sys.executable, *args]))
value = lambda name: args[args.index(name) + 1]
if args[1] == "stateplay_rl.arena.serve":
    Path(value("--port-file")).write_text("4321" if value("--port") == "0" else value("--port"))
    time.sleep(60)
if args[1] == "stateplay_rl.arena.make_clips":
    Path(value("--out")).mkdir()
    sys.exit(0)
command, out = args[2], Path(value("--out"))
with open(root / "asked.jsonl", "a") as log:
    log.write(json.dumps(args[2:]) + "\\n")
number = len((root / "asked.jsonl").read_text().splitlines())
out.mkdir(parents=True, exist_ok=True)
sealed, resume = (out / "manifest.json").exists(), "--resume" in args
extend, stage = "--extend" in args, value("--stage") if "--stage" in args else "a"
if command == "train-nft":
    names = sorted(p.name for p in out.glob("segments/*"))
    open_ones = [n for n in names if not (out / "segments" / n / "manifest.json").exists()]
    kind = "a+280" if extend else stage
    mine = [n for n in names if n.split("-", 1)[1] == kind]
    if mine and resume and not open_ones:
        sys.exit(0)
    if open_ones and open_ones[0].split("-", 1)[1] != kind:
        sys.exit(0 if mine and resume else 3)
    if sealed and not extend and stage == "a":
        sys.exit(3)
    name = open_ones[0] if open_ones else f"{{len(names):03d}}-{{kind}}"
    segment = out / "segments" / name
    segment.mkdir(parents=True, exist_ok=True)
    (out / "manifest.json").unlink(missing_ok=True)
elif sealed and not resume and "--overwrite" not in args:
    sys.exit(3)
if str(number) == os.environ.get("STOP_AT"):
    sys.exit(5)
if command == "train-nft":
    (segment / "manifest.json").touch()
if command == "train-rm":
    passed = out.name == os.environ.get("GOOD_STUDENT", "reward_model-0")
    (out / "gate.json").write_text(json.dumps({{"passed": passed}}))
(out / "manifest.json").touch()
"""


class Lab:
    """Runs the script with the stand-in."""

    def __init__(self, root: Path) -> None:
        self.root, self.out = root, root / "out"
        self.python = root / "python"
        self.python.write_text(STAND_IN.format(python=sys.executable))
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)

    def run(self, mode: str, **more: str) -> subprocess.CompletedProcess[str]:
        world = {"WORLD": "world.yaml", "CSV": "clips.csv", "GPUS": "1"} if mode == "real" else {}
        environment = {**os.environ, "PYTHON": str(self.python), "STAND_IN_ROOT": str(self.root), **world, **more}
        environment.pop("RL_RUN_ROOT", None)
        command = ["bash", str(SCRIPT), mode, str(self.out)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.root / "asked.jsonl").read_text().splitlines()]

    def names(self) -> list[str]:
        return [command[0] for command in self.asked()]

    def segments(self) -> list[str]:
        return sorted(path.name for path in (self.out / "run" / "segments").iterdir())


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


WHOLE = [
    "audit-ckpt",
    "build-conditions",
    "rollout",
    "score",
    "train-nft",
    "train-rm",
    "train-nft",
    "report",
    "verify",
]


@pytest.mark.parametrize("mode", ["smoke", "real"])
def test_a_then_b_then_the_gate_then_c(lab: Lab, mode: str) -> None:
    result = lab.run(mode)
    assert result.returncode == 0, result.stderr
    assert lab.names() == WHOLE
    assert lab.segments() == ["000-a", "001-c"]
    stage_c = lab.asked()[6]
    assert stage_c[stage_c.index("--reward-model") + 1] == str(lab.out / "reward_model-0")
    assert ("--force-without-gate" in stage_c) == (mode == "smoke")


def test_a_student_that_is_not_good_enough_stops_before_c(lab: Lab) -> None:
    result = lab.run("real", GOOD_STUDENT="none")
    assert result.returncode == 4
    assert "GROW=1" in result.stderr
    assert lab.segments() == ["000-a"]
    assert lab.names() == [*WHOLE[:6], "report"]


def test_growing_trains_a_new_student_each_time_and_c_uses_the_one_that_passed(lab: Lab) -> None:
    result = lab.run("real", GOOD_STUDENT="reward_model-2", GROW="3")
    assert result.returncode == 0, result.stderr
    assert lab.segments() == ["000-a", "001-a+280", "002-a+280", "003-c"]
    stage_c = lab.asked()[-3]
    assert stage_c[stage_c.index("--reward-model") + 1] == str(lab.out / "reward_model-2")


@pytest.mark.parametrize("stop", range(1, 14))
def test_it_may_stop_at_any_line(lab: Lab, stop: int) -> None:
    """Two extensions, so 13 commands; stopped at each, the second start ends with the same segments."""
    settings = {"GOOD_STUDENT": "reward_model-2", "GROW": "2"}
    assert lab.run("real", **settings, STOP_AT=str(stop)).returncode == 5
    result = lab.run("real", **settings)
    assert result.returncode == 0, result.stderr
    assert lab.segments() == ["000-a", "001-a+280", "002-a+280", "003-c"]
    # Nothing that was finished is trained again: a student that is sealed is only looked at.
    stopped = lab.asked()[stop - 1][0]
    assert lab.names().count("train-rm") == 3 + (stopped == "train-rm")


def test_a_finished_run_may_be_started_again(lab: Lab) -> None:
    assert lab.run("smoke").returncode == 0
    first = lab.segments()
    result = lab.run("smoke")
    assert result.returncode == 0, result.stderr
    assert lab.segments() == first
    assert lab.names().count("train-rm") == 1


def test_the_judge_keeps_its_address_over_restarts(lab: Lab) -> None:
    """The address is a setting of the run: another one would be another run."""
    assert lab.run("smoke", STOP_AT="5").returncode == 5
    assert lab.run("smoke").returncode == 0
    urls = {word for command in lab.asked() for word in command if word.startswith("judge.base_url=")}
    assert urls == {"judge.base_url=http://127.0.0.1:4321/v1"}


def test_wrong_usage_says_how(lab: Lab) -> None:
    result = lab.run("real", WORLD="")
    assert result.returncode != 0
    assert "a world file" in result.stderr
    result = lab.run("fast")
    assert result.returncode == 2
    assert "run.sh smoke OUT" in result.stderr
