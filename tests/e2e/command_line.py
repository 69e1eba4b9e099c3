"""The real command line at tiny sizes: in this process, in a process of its own, in several, or killed."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.cli.main import main
from stateplay_rl.stores import layout
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import is_sealed, read_manifest

ROOT = Path(__file__).resolve().parents[2]
CANDIDATES, STEPS = 3, 2
LOGS = (layout.METRICS, layout.HELDOUT)
SAMPLING = (f"sampling.candidates={CANDIDATES}", f"sampling.steps={STEPS}", "sampling.candidates_per_call=3")


@dataclass(frozen=True)
class Result:
    """What a command ended with."""

    code: int
    text: str


@dataclass(frozen=True)
class Arena:
    """Inputs that all tests share; never written to."""

    clips: Path
    audit: Path
    conditions: Path
    encoded: Path

    def train(self, out: Path, *more: object, **settings: Any) -> list[str]:
        """Command line of a small `train-nft`: batches of 2, 2 and 1 conditions."""
        values = {
            "stage_conditions": 5,
            "conditions_per_batch": 2,
            "optimizer.samples_per_step": 4,
            "optimizer.samples_per_call": 1,
            "optimizer.inner_epochs": 1,
            "optimizer.learning_rate_transition": 1e-3,
            "heldout.conditions": 2,
            "heldout.samples": 1,
            "heldout.every_batches": 2,
            "encoded": self.encoded,
            "tracker": "none",
            "threads": 1,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        sets = [*SAMPLING, *(f"{key}={value}" for key, value in values.items())]
        command = ["train-nft", self.conditions, "--out", out, "--audit", self.audit, "--quiet"]
        command += ["--judge", "referee"] if "--judge" not in more else []
        return [*map(str, command), *with_set(sets), *map(str, more)]

    def rollout(self, out: Path, *more: object) -> list[str]:
        """Command line of a small `rollout`."""
        return [*map(str, ("rollout", self.conditions, "--out", out, "-q", *more)), *with_set(SAMPLING)]

    def groups_and_scores(self, root: Path, *more: object) -> tuple[Path, Path]:
        """A groups/ and its scores/ by the referee, below `root`."""
        groups, scores = root / "groups", root / "scores"
        succeed(*self.rollout(groups, *more))
        succeed("score", groups, "--judge", "referee", "--out", scores, "-q")
        return groups, scores


def with_set(values: Any) -> list[str]:
    return [part for value in values for part in ("--set", str(value))]


def sprl(*arguments: object) -> Result:
    """Run a command in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main([str(argument) for argument in arguments])
    return Result(code, out.getvalue())


def succeed(*arguments: object) -> str:
    """Run a command that must end with 0; returns what it printed."""
    result = sprl(*arguments)
    assert result.code == 0, result.text
    return result.text


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def start(*arguments: object, processes: int = 1) -> subprocess.Popen[str]:
    """Start a command in a process of its own, or in several."""
    command = [sys.executable, "-m"]
    env = environment()
    if processes > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc_per_node", str(processes), "-m"]
        env["ACCELERATE_USE_CPU"] = "true"
    command += ["stateplay_rl", *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> Result:
    text, _ = process.communicate(timeout=300)
    return Result(process.returncode, text)


def run_elsewhere(*arguments: object, processes: int = 1) -> Result:
    return finish(start(*arguments, processes=processes))


def kill_family(process: subprocess.Popen[str]) -> None:
    """SIGKILL a process and its descendants: a launcher's ranks have sessions of their own."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # A process may end while we look.
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    family = [process.pid]
    for pid in family:
        family += parents.get(pid, [])
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class KillPoint:
    """Kill once `count` paths match `pattern` below the output, or a file has `count` lines, plus a random wait."""

    pattern: str
    count: int
    lines: bool = False

    def reached(self, out: Path) -> bool:
        paths = [path for path in out.glob(self.pattern) if not layout.is_private(path.name)]
        if not self.lines:
            return len(paths) >= self.count
        return any(path.read_bytes().count(b"\n") >= self.count for path in paths)


def run_with_kills(command: list[str], out: Path, points: list[KillPoint], seed: int) -> int:
    """Run a command, killing it (SIGKILL) at each point in turn and resuming, then let it end.

    Returns:
        The number of kills that hit a living process.
    """
    draws = random.Random(seed)
    kills = 0
    for number, point in enumerate(points):
        process = start(*command, *(["--resume"] if number else []))
        while process.poll() is None and not point.reached(out):
            time.sleep(0.002)
        time.sleep(draws.random() * 0.1)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        result = finish(process)
        assert result.code in (0, -signal.SIGKILL), result.text
        if is_sealed(out):
            break
    result = run_elsewhere(*command, "--resume")
    assert result.code == 0, result.text
    return kills


def run_results(run: Path) -> dict[str, Any]:
    """All of a run that must not depend on what happened on the way."""
    manifest = read_manifest(run, schema="run", verify_files=True)
    with Ledger.open(run / layout.LEDGER, read_only=True) as ledger:
        digest = ledger.digest()
    policies = {path.name: path.read_bytes() for path in sorted((run / layout.POLICY_FOLDER).iterdir())}
    groups = sorted(run.glob(f"segments/*/groups/*/{layout.GROUP}"))
    return {
        "policies": policies,
        "live": manifest.extra["policies"]["live"],
        "ledger": digest,
        **{name: path.read_bytes() if (path := run / name).is_file() else b"" for name in LOGS},
        "verdicts": [path.read_bytes() for path in sorted(run.glob(f"segments/*/{layout.VERDICTS}"))],
        "groups": {path.parent.name: path.read_bytes() for path in groups},
    }


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but the lock."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != layout.LOCK
    }
