"""The kill drill: start a command, shoot it, resume it, until it ends; then compare with a run that was left alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stateplay_rl.errors import CheckError
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.manifest import is_sealed

EARLIEST_SECONDS = 0.2
LAST_LINES = 5
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node")


@dataclass(frozen=True)
class Kill:
    """One shot: seconds after the process began, and what stood on disk then.

    Args:
        batches: that the newest checkpoint has behind it.
        groups: finished ones of the segments.
    """

    seconds: float
    batches: int
    groups: int


@dataclass
class Drill:
    """How one command is run again and again.

    Args:
        arguments: of `sprl`, without `--out` and `--resume`.
        log: takes what the processes say.
        processes: ranks of the starts, taken in turn: the next number after every shot that hit.
        kills: shots so far that hit a living process.
    """

    arguments: tuple[str, ...]
    log: Path
    processes: tuple[int, ...] = (1,)
    environment: Mapping[str, str] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)

    def start(self, out: Path, *, resume: bool) -> subprocess.Popen[bytes]:
        """Start the command, with its own ranks when there are several."""
        ranks = self.processes[len(self.kills) % len(self.processes)]
        command = [sys.executable, *([*LAUNCHER, str(ranks)] if ranks > 1 else [])]
        command += ["-m", "stateplay_rl", *self.arguments, "--out", str(out), *(["--resume"] if resume else [])]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env={**os.environ, **self.environment}, stdout=log, stderr=log)

    def run(self, out: Path, *, resume: bool = False) -> float:
        """Run to the end; returns seconds.

        Raises:
            CheckError: another exit code than 0.
        """
        began = time.monotonic()
        self.require_zero(out, self.start(out, resume=resume).wait())
        return time.monotonic() - began

    def require_zero(self, out: Path, code: int) -> None:
        """Raise CheckError with the last lines of the log unless the command ended well."""
        if code != 0:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
            raise CheckError(f"{out.name}: exit code {code}: {' | '.join(lines)}", f"see {self.log}")

    def shoot(self, out: Path, draws: random.Random, longest_seconds: float, most: int) -> int:
        """Start or resume, kill after a random time, and again, until `most` shots hit or the run has ended.

        Returns:
            The number of shots that hit a living process.

        Raises:
            CheckError: a resume ended with an error by itself.
        """
        hits = 0
        while hits < most and not is_sealed(out):
            process = self.start(out, resume=out.is_dir() and any(out.iterdir()))
            seconds = draws.uniform(EARLIEST_SECONDS, longest_seconds)
            try:
                self.require_zero(out, process.wait(timeout=seconds))
            except subprocess.TimeoutExpired:
                kill_family(process)
                hits += 1
                self.kills.append(_kill(out, seconds))
        return hits


def _kill(out: Path, seconds: float) -> Kill:
    steps = CheckpointStore(out / layout.CHECKPOINTS_FOLDER).steps()
    groups = len(list(out.glob(f"{layout.SEGMENTS_FOLDER}/*/{layout.GROUPS_FOLDER}/*/{layout.GROUP}")))
    return Kill(round(seconds, 3), max(steps, default=0), groups)


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and its descendants: a launcher's ranks have sessions of their own."""
    for pid in family(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended meanwhile
    process.wait()


def family(pid: int) -> list[int]:
    """A process and its descendants, where the system has /proc; else the process alone."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # gone meanwhile
        parents.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for member in found:
        found += parents.get(member, [])
    return found


def twice(items: Sequence[str]) -> list[str]:
    """What occurs more than once."""
    return sorted({item for item in items if items.count(item) > 1})


def half_files(run: Path) -> Iterator[Path]:
    """Leftovers of killed writes that a finished run still holds."""
    for path in run.rglob("*"):
        if layout.is_private(path.name) and path.name != layout.LOCK:
            yield path
