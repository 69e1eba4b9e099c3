"""Wall seconds, processor seconds and peak memory of a command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Cost:
    """What a command took.

    Args:
        wall_seconds: on this machine, with whatever else it was doing.
        cpu_seconds: user and system time, of all processes that it started: hardly depends on other work.
        peak_megabytes: largest resident memory of the process itself, without its children.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_megabytes: float


def run(command: Sequence[str], accept: Sequence[int] = (0,), env: Mapping[str, str] | None = None) -> Cost:
    """Run to the end.

    Args:
        command: program and arguments.
        accept: exit codes that are no failure.
        env: variables beside those of this process.

    Raises:
        RuntimeError: another exit code; the message ends with the command's output.
    """
    with tempfile.TemporaryFile() as output:
        began, peak, used = time.monotonic(), 0.0, dict[int, float]()
        child = subprocess.Popen(
            list(command),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            start_new_session=True,
        )
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            # `ru_maxrss` would start from the memory of the process that forked.
            peak = max(peak, _high_water(child.pid))
            used |= _session_seconds(child.pid)
            # A hundredth of the time so far: looking costs processor time that others want.
            time.sleep(min(1.0, 0.05 + 0.01 * (time.monotonic() - began)))
        wall = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in accept:
            output.seek(0)
            text = output.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(command[:6])} ... ended with {child.returncode}:\n{text}")
    # Workers that another process reaps are in no child's account; what ends between two looks is in no other.
    cpu = max(usage.ru_utime + usage.ru_stime, sum(used.values()))
    return Cost(round(wall, 3), round(cpu, 3), round(peak, 1))


def _session_seconds(session: int) -> dict[int, float]:
    """Processor seconds so far of every process of a session, by process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in brackets, may hold spaces; after it: state, parent, group, session, ... user and system time.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            found[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def sprl(*arguments: str | Path, accept: Sequence[int] = (0,), env: Mapping[str, str] | None = None) -> Cost:
    """`run` of an `sprl` command with this interpreter."""
    return run([sys.executable, "-m", "stateplay_rl", *map(str, arguments)], accept, env)


def _high_water(pid: int) -> float:
    """Peak resident megabytes so far; 0 once the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmHWM")), 0.0)
