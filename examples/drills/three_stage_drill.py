"""The three-stage script under SIGKILL: it must end as if left alone, and pay for every request once.

    python examples/drills/three_stage_drill.py --out three_stage_drill --kills 12 --life-seconds 30 90

Runs `examples/three_stage/run.sh smoke` once undisturbed, then again with kills at drawn moments: at one the whole
family of processes dies, at the next the script alone with the command that it was waiting for, so that its judge
server is left behind. Compared: the policies, segments and consumed conditions of both runs, and the paid requests.
Writes `three_stage_drill.json`; exits with 4 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.errors import EXIT_CHECK
from stateplay_rl.stores import layout
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.stores.requests import read_attempts
from stateplay_rl.stores.segments import list_segments

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "three_stage" / "run.sh"
LIFE_SECONDS = (30.0, 90.0)
"""On two idle cores: from the start of a few programs to most of a stage. Longer on a busy machine."""


@dataclass(frozen=True)
class Life:
    """One start of the script: how it ended, after how long, and in which command."""

    ended: str
    seconds: float
    command: str


def start(out: Path, log: Path) -> subprocess.Popen[bytes]:
    """The script as the leader of a session of its own."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.pop("RL_RUN_ROOT", None)
    with log.open("ab") as file:
        return subprocess.Popen(
            ["bash", str(SCRIPT), "smoke", str(out)], env=environment, stdout=file, stderr=file, start_new_session=True
        )


def children(pid: int) -> list[int]:
    """Processes that a process waits for, but not its judge server."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    rows = [line.split(None, 1) for line in listed.stdout.splitlines()]
    return [int(row[0]) for row in rows if len(row) == 2 and "arena.serve" not in row[1]]


def live(out: Path, log: Path, seconds: float | None, *, family: bool) -> Life:
    """Start the script and let it live so long; None lets it end by itself."""
    started = time.monotonic()
    process = start(out, log)
    try:
        code = process.wait(seconds)
        ended = f"exit {code}"
    except subprocess.TimeoutExpired:
        ended = "family killed" if family else "script killed"
        if family:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            waiting_for = children(process.pid)
            for pid in (process.pid, *waiting_for):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    commands = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("+ sprl ")]
    return Life(ended, round(time.monotonic() - started, 1), commands[-1].split(" ")[2] if commands else "")


def facts(out: Path) -> dict[str, Any]:
    """What must be equal."""
    run = out / "run"
    with Ledger.open(run / layout.LEDGER, read_only=True) as ledger:
        consumed = ledger.digest()
    attempts = read_attempts(out / "requests")
    return {
        "policies": read_manifest(run, schema="run", verify_files=True).extra["policies"],
        "segments": [segment.path.name for segment in list_segments(run)],
        "consumed": consumed,
        "requests": sorted(attempt.key for attempt in attempts if attempt.state == "answered"),
    }


def main(arguments: list[str] | None = None) -> int:
    """Both runs and their comparison."""
    parser = argparse.ArgumentParser(description="The three-stage script under SIGKILL.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--life-seconds", type=float, nargs=2, default=LIFE_SECONDS, metavar=("FROM", "TO"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    draw = random.Random(options.seed)
    calm, shot = options.out / "calm", options.out / "shot"
    lives = [live(calm, options.out / "calm.log", None, family=True)]
    log = options.out / "shot.log"
    for number in range(options.kills):
        lives.append(live(shot, log, draw.uniform(*options.life_seconds), family=number % 2 == 0))
        print(lives[-1], flush=True)
        if lives[-1].ended.startswith("exit"):
            break
    lives.append(live(shot, log, None, family=True))
    before, after = facts(calm), facts(shot)
    once = len(set(after["requests"])) == len(after["requests"])
    result = {
        "equal": before == after and once,
        "differs": [name for name in before if before[name] != after[name]],
        "paid_once": once,
        "requests": len(after["requests"]),
        "kills": sum("killed" in one.ended for one in lives),
        "lives": [vars(one) for one in lives],
    }
    text = json.dumps(result, indent=1)
    (options.out / "three_stage_drill.json").write_text(text + "\n")
    print(text)
    return 0 if result["equal"] else EXIT_CHECK


if __name__ == "__main__":
    sys.exit(main())
