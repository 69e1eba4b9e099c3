"""Writes arena clips in the real data's exact format.

``metadata_state_polish.csv`` beside ``clips/<name>/video.mp4`` and ``clips/<name>/actions.parquet``: the
same columns and types; buttons stand on the first row of each window only, the rest are 0.
"""

from __future__ import annotations

import csv
import io
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stateplay_rl.arena.dataset import (
    CLEAR_CHANGE,
    ArenaCondition,
    class_sequence,
    draw_condition,
    render,
    simulate,
)
from stateplay_rl.arena.moves import SPECIAL_COST
from stateplay_rl.arena.opponent import STRATEGY_BY_NAME
from stateplay_rl.arena.state import FPS, WINDOW_FRAMES, WRITTEN_FRAMES, Trajectory
from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.errors import OutputError, UsageError
from stateplay_rl.stores.atomic import atomic_dir, write_bytes, write_text
from stateplay_rl.stores.video import encode_mp4

METADATA_FILE = "metadata_state_polish.csv"
METADATA_COLUMNS = ("video", "action", "distribution", "prompt", "strategy", "category")
STATE_COLUMNS = ("p1_hp", "p2_hp", "p1_meter", "p2_meter", "macro_ready", "timer")
CHUNK_CLIPS = 16


@dataclass(frozen=True)
class ClipSummary:
    """What was written.

    Args:
        folder: The data root.
        clips: Clips written.
        by_class: Clips of each class.
    """

    folder: Path
    clips: int
    by_class: dict[str, int]


def clip_name(index: int) -> str:
    """Folder name of a clip."""
    return f"clip_{index:06d}"


def action_table(condition: ArenaCondition, truth: Trajectory) -> pa.Table:
    """The action parquet of a clip: int32, one row a frame, buttons on every 4th row only."""
    rows = len(truth.timer_T)
    written_RK = np.where(np.arange(rows)[:, None] % WINDOW_FRAMES == 0, condition.held_buttons, 0)
    columns: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {
        "frame_id": np.arange(rows),
        "p1_hp": truth.hp[:, 0],
        "p2_hp": truth.hp[:, 1],
        "p1_meter": truth.meter[:, 0],
        "p2_meter": truth.meter[:, 1],
        "macro_ready": truth.meter[:, 0] >= SPECIAL_COST,
        "timer": truth.timer_T,
    }
    columns.update({name: written_RK[:, k] for k, name in enumerate(BUTTONS)})
    return pa.table({name: pa.array(values.astype(np.int32)) for name, values in columns.items()})


def write_clip(root: Path, condition: ArenaCondition) -> dict[str, str]:
    """Write one clip below `root`; returns its row of the metadata CSV."""
    truth = simulate(condition, frames=WRITTEN_FRAMES)
    name = clip_name(condition.index)
    folder = root / "clips" / name
    folder.mkdir(parents=True)
    encode_mp4(folder / "video.mp4", render(truth), FPS)
    buffer = io.BytesIO()
    pq.write_table(action_table(condition, truth), buffer)
    write_bytes(folder / "actions.parquet", buffer.getvalue())
    strategy = STRATEGY_BY_NAME[condition.strategy]
    return {
        "video": f"clips/{name}/video.mp4",
        "action": f"clips/{name}/actions.parquet",
        "distribution": condition.mechanics_class,
        "prompt": condition.prompt,
        "strategy": strategy.text,
        "category": strategy.category,
    }


def _write_chunk(job: tuple[Path, int, int, tuple[str, ...]]) -> list[dict[str, str]]:
    root, seed, start, classes = job
    return [write_clip(root, draw_condition(seed, start + i, name, CLEAR_CHANGE)) for i, name in enumerate(classes)]


def write_clips(
    out: Path, count: int, seed: int, class_mix: Mapping[str, float] | None = None, workers: int = 1
) -> ClipSummary:
    """Write a data set; the bytes depend on (count, seed, class mix) only, not on the workers.

    Args:
        out: The data root; must not exist, or be empty.
        count: Number of clips.
        seed: Seed of the conditions.
        class_mix: Shares of the classes; default the real data's.
        workers: Processes.

    Raises:
        OutputError: `out` holds something.
        UsageError: a count or class mix that makes no sense.
        OutsideError: the disk is full or read-only.
    """
    if count < 1 or workers < 1:
        raise UsageError(f"{count} clips with {workers} workers", "both must be at least 1")
    if out.exists():
        if not out.is_dir() or any(out.iterdir()):
            raise OutputError(f"{out} exists and is not an empty folder", "give a new --out")
        out.rmdir()
    classes = class_sequence(count, seed, class_mix)
    with atomic_dir(out) as root:
        jobs = [(root, seed, start, classes[start : start + CHUNK_CLIPS]) for start in range(0, count, CHUNK_CLIPS)]
        if workers == 1:
            chunks = [_write_chunk(job) for job in jobs]
        else:
            # spawn: a forked child would inherit the threads of numerical libraries in any state.
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context) as pool:
                chunks = list(pool.map(_write_chunk, jobs))
        text = io.StringIO()
        writer = csv.DictWriter(text, METADATA_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for chunk in chunks for row in chunk)
        write_text(root / METADATA_FILE, text.getvalue())
    return ClipSummary(out, count, {name: classes.count(name) for name in sorted(set(classes))})
