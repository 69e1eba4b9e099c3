"""Conditions with several right and wrong futures, rendered and scored by the referee in worker processes.

The futures are engine renderings, not outputs of any world model: glitches of the engine, other buttons, other
strategies, displays and bodies of different futures put together, delays, freezes. Which of them stand in a group, and
under which letter, is drawn while training. Shapes: V futures, S frames shown, h w picture, R readings of a picture.
"""

from __future__ import annotations

import io
import math
import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stateplay_rl.arena import layout as lay
from stateplay_rl.arena.dataset import CLEAR_CHANGE, ArenaCondition, class_sequence, draw_condition, render, simulate
from stateplay_rl.arena.game import simulate_first
from stateplay_rl.arena.opponent import STRATEGIES
from stateplay_rl.arena.pixels import true_reading
from stateplay_rl.arena.referee import compare
from stateplay_rl.arena.state import FRAME_FIELDS, FRAMES, WINDOW_FRAMES, Glitches, Trajectory
from stateplay_rl.judges.frames import frame_indices
from student_recipe.prompts import FRAMES_SHOWN

CLASS_MIX = {"normal": 0.4, "Macro_success": 0.15, "macro_fail": 0.15, "Result_win": 0.15, "Result_lose": 0.15}
FUTURES = 10
READINGS = 8
JOB_CONDITIONS = 20
FIRST_FOR_TOKENIZER = 1_000_000
JPEG_QUALITY = 90
_SHOWN = list(frame_indices(FRAMES, FRAMES_SHOWN))
_COLUMN = {name: i for i, name in enumerate(FRAME_FIELDS)}
_GLITCHES = [Glitches(bool(k & 1), bool(k & 2), bool(k & 4)) for k in range(1, 8)]


@dataclass(frozen=True)
class Arrays:
    """Pictures, scores and readings of N conditions.

    Args:
        first_NhwC: first frames, uint8.
        frames_NVShwC: shown frames of every future, uint8; future 0 is the true one.
        scores_NV: referee's points, float32.
        readings_NVSR: bars (4), body places (2) and heights (2) as shares of their range, float32.
    """

    first_NhwC: NDArray[np.uint8]
    frames_NVShwC: NDArray[np.uint8]
    scores_NV: NDArray[np.float32]
    readings_NVSR: NDArray[np.float32]

    @classmethod
    def shared(cls, count: int) -> Arrays:
        """Zeros in memory that forked workers share: nothing is sent back through pipes."""
        picture = (lay.HEIGHT, lay.WIDTH, 3)
        return cls(
            _shared((count, *picture), np.uint8),
            _shared((count, FUTURES, FRAMES_SHOWN, *picture), np.uint8),
            _shared((count, FUTURES), np.float32),
            _shared((count, FUTURES, FRAMES_SHOWN, READINGS), np.float32),
        )


def _shared(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, size), dtype).reshape(shape)


@dataclass(frozen=True)
class Futures:
    """What training draws its groups from: conditions and what was rendered of them."""

    conditions: tuple[ArenaCondition, ...]
    arrays: Arrays


def _mixed(rng: np.random.Generator, pool: list[Trajectory]) -> Trajectory:
    """HP of one future, meters of another, bodies of a third; perhaps late, perhaps frozen from some frame on."""
    parts = [pool[int(rng.integers(len(pool)))] for _ in range(3)]
    values = parts[2].values_TPF.copy()
    for name, source in (("hp", parts[0]), ("meter", parts[1])):
        values[:, :, _COLUMN[name]] = source.values_TPF[:, :, _COLUMN[name]]
    frames = np.arange(FRAMES)
    kind = rng.random()
    if kind < 0.25:
        frames = np.maximum(0, frames - int(rng.integers(1, 9)))
    elif kind < 0.5:
        frames = np.minimum(frames, int(rng.integers(2, FRAMES - 2)))
    return Trajectory(values[frames], parts[2].timer_T, parts[2].events)


def _futures(rng: np.random.Generator, condition: ArenaCondition) -> list[Trajectory]:
    """The true future first, then wrong ones of every kind."""
    truth = simulate(condition)
    glitched = [simulate(condition, _GLITCHES[int(k)]) for k in rng.permutation(7)[:3]]
    windows = condition.held_buttons[::WINDOW_FRAMES]
    held = np.repeat(windows[rng.permutation(len(windows))], WINDOW_FRAMES, axis=0)[:FRAMES]
    strategy = STRATEGIES[int(rng.integers(len(STRATEGIES)))].name
    other = [simulate_first(condition.first, held, s) for s in (condition.strategy, strategy)]
    pool = [truth, truth, *glitched, *other]
    return [truth, *glitched, *other, *(_mixed(rng, pool) for _ in range(FUTURES - 6))]


def _jpeg(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A picture as the judge gets it."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=2)
    return np.asarray(Image.open(buffer).convert("RGB"))


def _readings(trajectory: Trajectory) -> NDArray[np.float32]:
    """What a perfect reader sees in the shown frames [S, R]."""
    seen = true_reading(trajectory)
    columns = (seen.hp_TP / 40.0, seen.meter_TP / 20.0, seen.x_TP / lay.WIDTH, seen.height_TP / 40.0)
    return np.concatenate(columns, axis=1)[_SHOWN].astype(np.float32)


_filled: list[Arrays] = []
"""In a worker: where its results go."""


def _job(arguments: tuple[int, int, tuple[str, ...]]) -> tuple[ArenaCondition, ...]:
    """Render some conditions into the shared arrays."""
    seed, start, classes = arguments
    arrays = _filled[-1]
    conditions = tuple(draw_condition(seed, start + i, name, CLEAR_CHANGE) for i, name in enumerate(classes))
    for row, condition in enumerate(conditions, start):
        rng = np.random.default_rng([seed, 7, condition.index])
        futures = _futures(rng, condition)
        videos = [render(future) for future in futures]
        arrays.first_NhwC[row] = _jpeg(videos[0][0])
        for future, (trajectory, video) in enumerate(zip(futures, videos, strict=True)):
            arrays.frames_NVShwC[row, future] = [_jpeg(video[i]) for i in _SHOWN]
            arrays.scores_NV[row, future] = compare(video, futures[0]).score
            arrays.readings_NVSR[row, future] = _readings(trajectory)
    return conditions


def tokenizer_conditions(seed: int, count: int = 256) -> list[ArenaCondition]:
    """Conditions whose texts the tokenizer learns from; not those of the training."""
    classes = class_sequence(count, seed, CLASS_MIX)
    return [draw_condition(seed, FIRST_FOR_TOKENIZER + i, name, CLEAR_CHANGE) for i, name in enumerate(classes)]


def render_futures(
    count: int, seed: int, workers: int | None = None, meanwhile: Callable[[Sequence[ArenaCondition]], None] = len
) -> Futures:
    """All conditions; the same seed gives the same data whatever the number of workers.

    Call it before a GPU is touched: the workers are forked.

    Args:
        count: conditions.
        workers: processes; None takes one a core.
        meanwhile: called here with each block of conditions, in order, while the workers go on.
    """
    classes = class_sequence(count, seed, CLASS_MIX)
    jobs = [(seed, start, classes[start : start + JOB_CONDITIONS]) for start in range(0, count, JOB_CONDITIONS)]
    arrays = Arrays.shared(count)
    conditions: list[ArenaCondition] = []
    with ProcessPoolExecutor(
        workers or os.cpu_count(), mp_context=get_context("fork"), initializer=_filled.append, initargs=(arrays,)
    ) as pool:
        for block in pool.map(_job, jobs):
            conditions += block
            meanwhile(block)
    return Futures(tuple(conditions), arrays)
