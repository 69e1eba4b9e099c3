"""Seconds by part and peak memory of one batch; kept out of the metrics, which must be reproducible."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

KIB_PER_MIB = 1024.0


class PartTimer:
    """Adds up wall-clock seconds by part."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Time what happens inside under the name `part`."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[part] = self._seconds.get(part, 0.0) + time.monotonic() - started

    def line(self) -> dict[str, Any]:
        """Seconds by part, and the peak memory of this process so far, MiB (of its GPU where there is one)."""
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated() / 2**20
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB
        return {"seconds": dict(self._seconds), "peak_memory_mb": peak}


def gpu_memory_mb() -> float | None:
    """Memory of this process's GPU, MiB; None on a CPU."""
    if not torch.cuda.is_available():
        return None
    return float(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory) / 2**20
