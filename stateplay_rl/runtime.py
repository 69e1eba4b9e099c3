"""The process around the numbers: devices, threads, seeds, ranks, progress. Torch is imported when needed."""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from stateplay_rl.errors import UsageError

if TYPE_CHECKING:
    import torch

_PLAIN_SECONDS = 10.0
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


class Progress:
    """Progress of a long loop: a bar on a terminal, a plain line every ten seconds elsewhere, or nothing.

    Use as a context manager. Only rank 0 shows anything.

    Args:
        title: what is being done, for example ``rollout``.
        total: number of steps, None when unknown.
        unit: name of a step in the plain lines.
    """

    def __init__(self, title: str, total: int | None = None, unit: str = "steps") -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.done = 0
        self._note = ""
        self._shown_at = 0.0
        self._started_at = 0.0
        self._bar: RichProgress | None = None
        self._console = Console(stderr=True, highlight=False)
        self._silent = is_quiet() or not ranks().is_main

    def __enter__(self) -> Progress:
        self._started_at = self._shown_at = time.monotonic()
        if not self._silent and self._console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=self._console,
            )
            self._bar.start()
            self._bar.add_task(self.title, total=self.total, note="")
        return self

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Count steps; `note` is shown beside the bar until the next one."""
        self.done += steps
        self._note = note or self._note
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.done, note=self._note)
        elif not self._silent and time.monotonic() - self._shown_at >= _PLAIN_SECONDS:
            self._line()

    def say(self, message: str) -> None:
        """A line of its own, above the bar."""
        if self._bar is not None:
            self._bar.console.print(message, markup=False, highlight=False)
        elif not self._silent:
            print(message, file=sys.stderr, flush=True)

    def _line(self) -> None:
        self._shown_at = time.monotonic()
        total = "" if self.total is None else f"/{self.total}"
        seconds = self._shown_at - self._started_at
        note = f", {self._note}" if self._note else ""
        print(
            f"{self.title}: {self.done}{total} {self.unit}, {seconds:.0f} s{note}",
            file=sys.stderr,
            flush=True,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif not self._silent:
            self._line()
