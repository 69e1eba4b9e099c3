"""Seconds and peak memory of one piece of work."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

GIB = float(1 << 30)


@dataclass(frozen=True)
class Measured:
    """One piece of work.

    Args:
        seconds: median of the repeats.
        first_seconds: the very first call: compiling, choosing kernels, taking memory.
        peak_gib: most memory that torch held on the device during the repeats; None on a CPU.
        repeats: calls behind the median.
    """

    seconds: float
    first_seconds: float
    peak_gib: float | None
    repeats: int


@dataclass(frozen=True)
class Meter:
    """Measures on one device; the device's queue is empty at both ends of every measurement."""

    device: torch.device

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Until all queued work is done."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def release(self) -> None:
        """Give unused memory back, so that the next peak is its own."""
        if self.on_gpu:
            gc.collect()
            torch.cuda.empty_cache()
            self.reset_peak()

    def reset_peak(self) -> None:
        """Count the most memory from here on."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_gib(self) -> float | None:
        """Most memory since the last reset."""
        return torch.cuda.max_memory_allocated(self.device) / GIB if self.on_gpu else None

    def once(self, work: Callable[[], object]) -> float:
        """Seconds of one call."""
        self.wait()
        began = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - began

    def measure(self, work: Callable[[], object], repeats: int) -> Measured:
        """The first call, then the median of `repeats` more; on a GPU one call in between settles the clocks."""
        self.release()
        first = self.once(work)
        # What it took stays with torch, as in a run: taking 36 GiB anew would be a part of the figure.
        self.reset_peak()
        if self.on_gpu and repeats > 1:
            work()
        seconds = [self.once(work) for _ in range(repeats)]
        return Measured(statistics.median(seconds), first, self.peak_gib(), repeats)
