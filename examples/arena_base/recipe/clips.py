"""Clips for the base model: true and glitched twins of the same conditions, rendered in worker processes.

The glitch flags are drawn per clip and stand in no condition: that is what makes the base sample right and wrong
mechanics for the same first frame, buttons and text.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from stateplay_rl.arena.dataset import CLEAR_CHANGE, NO_MINIMUM, draw_conditions, render, simulate
from stateplay_rl.arena.state import FRAMES, Glitches

GLITCH_PROBABILITY = 0.5
VARIANTS = 2
CLASS_MIX = {
    "normal": 0.4,
    "Macro_success": 0.15,
    "macro_fail": 0.15,
    "Result_win": 0.15,
    "Result_lose": 0.15,
}
"""More of the rare classes than the real data has: specials and knock-outs must be seen often enough to be learnt."""
JOB_CONDITIONS = 25
CHUNK_CONDITIONS = 1000
CLIP_SHAPE = (FRAMES, 64, 96, 3)


@dataclass(frozen=True)
class Clips:
    """frames [N, T, h, w, 3] uint8 (valid until the next chunk), held buttons [N, T, 11] float32, N prompts."""

    frames_NThwC: np.ndarray
    held_NTK: np.ndarray
    prompts: tuple[str, ...]


def _variant_flags(rng: np.random.Generator) -> list[Glitches]:
    """Two draws, antithetic, so that every condition shows both values of every flag."""
    draw = rng.random(3) < GLITCH_PROBABILITY
    return [
        Glitches(
            hits_drain_nothing=bool(values[0]),
            specials_cost_nothing=bool(values[1]),
            special_without_meter=bool(values[2]),
        )
        for values in (draw, ~draw)
    ]


def _render_job(arguments: tuple[str, int, int, int]) -> tuple[np.ndarray, list[str]]:
    """Render some conditions into the shared buffer from clip `start` on; returns buttons and prompts."""
    buffer, start, seed, count = arguments
    frames = np.memmap(buffer, np.uint8, "r+", shape=(CHUNK_CONDITIONS * VARIANTS, *CLIP_SHAPE))
    rng = np.random.default_rng([seed, 1])
    held, prompts = [], []
    # Every other job draws as written data sets do: there the bars move enough to be learnt exactly.
    minimum = CLEAR_CHANGE if seed // JOB_CONDITIONS % 2 else NO_MINIMUM
    for condition in draw_conditions(count, seed=seed, class_mix=CLASS_MIX, minimum=minimum):
        for flags in _variant_flags(rng):
            frames[start + len(held)] = render(simulate(condition, flags))
            held.append(condition.held_buttons)
            prompts.append(condition.prompt)
    return np.stack(held).astype(np.float32), prompts


class ClipFactory:
    """Renders chunks of clips in processes that are forked at once, before a GPU or a network is touched.

    The same seed gives the same clips whatever the number of workers.
    """

    def __init__(self, workers: int | None = None) -> None:
        shared = Path("/dev/shm")
        folder = shared if shared.is_dir() else Path(tempfile.gettempdir())
        handle, self._buffer = tempfile.mkstemp(dir=folder, prefix="arena-clips-")
        os.close(handle)
        os.truncate(self._buffer, CHUNK_CONDITIONS * VARIANTS * int(np.prod(CLIP_SHAPE)))
        self._pool = ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("fork"))
        self._pool.submit(os.getpid).result()

    def chunks(self, conditions: int, seed: int) -> Iterator[Clips]:
        """Clips of `conditions` conditions, `CHUNK_CONDITIONS` at a time; memory stays flat."""
        for first in range(0, conditions, CHUNK_CONDITIONS):
            count = min(CHUNK_CONDITIONS, conditions - first)
            jobs = [
                (
                    self._buffer,
                    start * VARIANTS,
                    seed * 1_000_003 + first + start,
                    min(JOB_CONDITIONS, count - start),
                )
                for start in range(0, count, JOB_CONDITIONS)
            ]
            parts = list(self._pool.map(_render_job, jobs))
            frames = np.memmap(self._buffer, np.uint8, "r", shape=(CHUNK_CONDITIONS * VARIANTS, *CLIP_SHAPE))
            yield Clips(
                frames[: count * VARIANTS],
                np.concatenate([held for held, _ in parts]),
                tuple(prompt for _, prompts in parts for prompt in prompts),
            )

    def close(self) -> None:
        """Stop the workers and free the buffer."""
        self._pool.shutdown()
        os.unlink(self._buffer)
