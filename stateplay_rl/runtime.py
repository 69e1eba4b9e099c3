"""The process around the numbers: devices, threads, seeds, ranks, progress. Torch is imported when needed."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.text import Text

from stateplay_rl.errors import UsageError

if TYPE_CHECKING:
    import torch

_PLAIN_SECONDS = 10.0
_REDRAWS_PER_SECOND = 2.0
_SPEED_OVER_SECONDS = 3600.0
"""The time left is reckoned over so long: a batch may take minutes."""
_SEED_BITS = 64
_quiet = False


def set_quiet(quiet: bool) -> None:
    """Switch all progress output of this process off or on."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether progress output is off."""
    return _quiet


@dataclass(frozen=True)
class Ranks:
    """This process among all processes of the job."""

    rank: int
    local_rank: int
    world_size: int

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes and prints."""
        return self.rank == 0


def ranks() -> Ranks:
    """Ranks from the environment variables of torch.distributed; 0 of 1 without them."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    try:
        rank, local_rank, world_size = (int(os.environ.get(n, d)) for n, d in zip(names, "001", strict=True))
    except ValueError as error:
        raise UsageError(f"RANK, LOCAL_RANK or WORLD_SIZE is no number: {error}", "use a launcher") from error
    return Ranks(rank, local_rank, world_size)


def pick_device(name: str | None = None) -> torch.device:
    """Device by name, or a GPU of this rank when there is one.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:N``, or None.

    Raises:
        UsageError: unknown name, or a GPU that does not exist.
    """
    import torch

    local_rank = ranks().local_rank
    if name is None:
        return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device {name!r} is unknown", "use cpu, cuda or cuda:N") from error
    if device.type == "cuda":
        device = torch.device("cuda", local_rank if device.index is None else device.index)
        if not torch.cuda.is_available() or device.index >= torch.cuda.device_count():
            found = torch.cuda.device_count() if torch.cuda.is_available() else 0
            raise UsageError(f"device {device} does not exist: {found} GPUs are visible", "use --device cpu")
    return device


def pin_threads(threads: int) -> None:
    """Fix the number of CPU threads: sums of different splits differ in their last bits.

    Args:
        threads: at least 1.
    """
    import torch

    if threads < 1:
        raise UsageError(f"{threads} threads", "use at least 1")
    # Child processes inherit it through the environment.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


def seed_everything(seed: int) -> None:
    """Seed the global generators of random, numpy and torch.

    Draws that decide results use generators of their own; this covers libraries that reach for the globals.
    """
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed % (1 << (_SEED_BITS - 1)))


class _TimeLeft(TimeRemainingColumn):
    """The caller's own estimate where it has one."""

    def render(self, task: Task) -> Text:
        """The words of `advance`, or Rich's reckoning."""
        return Text(task.fields["left"]) if task.fields["left"] else super().render(task)


class _Display(RichProgress):
    """The one live display of this process: a row per loop, the innermost last, and below them their notes."""

    current: _Display | None = None

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}", markup=False),
            TimeElapsedColumn(),
            _TimeLeft(),
        )
        super().__init__(
            *columns,
            console=console,
            refresh_per_second=_REDRAWS_PER_SECOND,
            speed_estimate_period=_SPEED_OVER_SECONDS,
        )

    def get_renderables(self) -> Iterator[RenderableType]:
        """All rows, then all notes: beside the bars they would not fit into 80 columns."""
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if task.fields["note"]:
                yield Text(f"  {task.fields['note']}", style="dim")


class Progress:
    """Progress of a long loop: a row on a terminal, a plain line every ten seconds elsewhere, or nothing.

    Use as a context manager. Only rank 0 shows anything. A loop inside of a loop gets a row below it while it lasts.

    Args:
        title: what is being done, for example ``rollout``.
        total: number of steps, None when unknown.
        unit: name of a step.
    """

    def __init__(self, title: str, total: int | None = None, unit: str = "steps") -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.done = 0
        self._note = self._left = ""
        self._shown_at = 0.0
        self._started_at = 0.0
        self._display: _Display | None = None
        self._row = TaskID(0)
        self._is_outermost = False
        self._silent = is_quiet() or not ranks().is_main

    def __enter__(self) -> Progress:
        self._started_at = self._shown_at = time.monotonic()
        console = Console(stderr=True, highlight=False)
        if not self._silent and console.is_terminal:
            if _Display.current is None:
                self._is_outermost = True
                _Display.current = _Display(console)
                _Display.current.start()
            self._display = _Display.current
            self._row = self._display.add_task(self.title, total=self.total, unit=self.unit, note="", left="")
        return self

    def advance(self, steps: int = 1, note: str = "", left: str = "") -> None:
        """Count steps.

        Args:
            steps: that were done.
            note: shown until the next one.
            left: how long it will still take, in words, where the caller knows better than the mean of all steps.
        """
        self.done += steps
        self._note, self._left = note or self._note, left or self._left
        if self._display is not None:
            self._display.update(self._row, completed=self.done, note=self._note, left=self._left)
        elif not self._silent and time.monotonic() - self._shown_at >= _PLAIN_SECONDS:
            self._line()

    def say(self, message: str) -> None:
        """A line of its own, above all rows."""
        if self._silent:
            return
        if _Display.current is not None:
            _Display.current.console.print(message, markup=False, highlight=False)
        else:
            print(message, file=sys.stderr, flush=True)

    def _line(self) -> None:
        self._shown_at = time.monotonic()
        total = "" if self.total is None else f"/{self.total}"
        told = [f"{self._shown_at - self._started_at:.0f} s", self._note, self._left]
        line = f"{self.title}: {self.done}{total} {self.unit}, {', '.join(part for part in told if part)}"
        print(line, file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is None:
            if not self._silent:
                self._line()
        elif self._is_outermost:
            self._display.stop()
            _Display.current = None
        else:
            self._display.remove_task(self._row)
