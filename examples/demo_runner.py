"""How the demo runs commands: one by one, side by side, on two processes; each is printed and timed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from stateplay_rl.cli.main import main as sprl


@dataclass
class Demo:
    """Where the demo writes, its seed, and the seconds of every stage so far."""

    out: Path
    seed: int
    clips: int
    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    console: Console = field(default_factory=lambda: Console(highlight=False))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)

    def run(self, name: str, *arguments: str, may_end_with: Sequence[int] = ()) -> int:
        """One `sprl` command; stops the demo when it fails.

        Args:
            may_end_with: exit codes that are results, too.

        Returns:
            The exit code.
        """
        self.console.print(f"\n[bold cyan]$ sprl {shlex.join(arguments)}[/]")
        with self.stage(name):
            code = sprl(list(arguments))
        if code and code not in may_end_with:
            raise SystemExit(code)
        return code

    def run_on_two(self, name: str, *arguments: str) -> None:
        """One `sprl` command on two processes of one core each; stops the demo when it fails."""
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "stateplay_rl"]
        shown = f"ACCELERATE_USE_CPU=true OMP_NUM_THREADS=1 python {shlex.join([*launch, *arguments])}"
        self.console.print(f"\n[bold cyan]$ {shown}[/]")
        environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
        with self.stage(name):
            code = subprocess.run([sys.executable, *launch, *arguments], env=environment, check=False).returncode
        if code:
            raise SystemExit(code)

    def run_together(self, commands: dict[str, Sequence[str]]) -> None:
        """Several `sprl` commands side by side, one core each; stops the demo when one fails."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        started = time.monotonic()
        processes = {}
        for name, arguments in commands.items():
            self.console.print(f"\n[bold cyan]$ sprl {shlex.join(arguments)}[/]  (as \\[{name}] below)")
            processes[name] = subprocess.Popen(
                [sys.executable, "-m", "stateplay_rl", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            )
        threads = [
            threading.Thread(target=self._follow, args=(name, process, started)) for name, process in processes.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failed = next((process.returncode for process in processes.values() if process.returncode), 0)
        if failed:
            raise SystemExit(failed)

    def _follow(self, name: str, process: subprocess.Popen[str], started: float) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if "rollout:" not in line:
                self.console.print(f"[{name}] {line.rstrip()}", markup=False)
        process.wait()
        self.seconds[name] = round(time.monotonic() - started, 1)
