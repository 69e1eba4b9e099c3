"""What the parts share: the recipe's place and seed, a line log, and a cosine rate with warm-up."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Recipe:
    """Where the parts write, the seed, the scale of steps and data, and the device."""

    out: Path
    seed: int
    scale: float
    device: torch.device
    rank: int = 0
    ranks: int = 1

    def steps(self, full: int) -> int:
        """`full` optimizer steps at scale 1."""
        return max(2, round(full * self.scale))

    def conditions(self, full: int) -> int:
        """`full` conditions at scale 1."""
        return max(8, round(full * self.scale))


class LineLog:
    """Appends JSON lines and prints them; seconds count from the start of the part. Silent on other ranks."""

    def __init__(self, path: Path, rank: int = 0) -> None:
        self._file = path.open("w", encoding="utf-8") if rank == 0 else None
        self._start = time.monotonic()

    def write(self, **values: Any) -> None:
        if self._file is None:
            return
        line = json.dumps({"seconds": round(time.monotonic() - self._start, 1), **values})
        print(line, flush=True)
        self._file.write(line + "\n")
        self._file.flush()


def cosine_rate(step: int, steps: int, warm_up: int = 200) -> float:
    """Factor on the learning rate: linear warm-up, then a half cosine to 0."""
    warm = min(1.0, (step + 1) / warm_up)
    return warm * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def captured(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as a CUDA graph (itself on a CPU): at this size a GPU waits for launches, not for arithmetic."""
    if device.type != "cuda":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(12):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    return graph.replay
