"""How well and how fast the HUD reader reads real frames: every figure that the documents state.

    python examples/benchmarks/hud_reader.py CLIPS [--profile sf3] [--out hud_reader.json]

CLIPS is a folder of clip folders, each with first_frame.png and actions.parquet (true values in row 0). Measured:
right, wrong and unreadable readings after each degradation at both sizes; readings of 200 foreign pictures and of 1,000
pictures with a covered element; frames per second of CPU time on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow.parquet as pq

from stateplay_rl.errors import InputError, SprlError
from stateplay_rl.evaluation import stress
from stateplay_rl.evaluation.draw_profile import read_picture
from stateplay_rl.evaluation.hud import ProfileReader
from stateplay_rl.evaluation.profile import load_profile

Truth = dict[str, float]
Frames = list[tuple[np.ndarray, Truth]]


def load_frames(clips: Path) -> Frames:
    """First frames and their true values."""
    found: Frames = []
    for folder in sorted(path for path in clips.iterdir() if (path / "first_frame.png").is_file()):
        table = pq.read_table(folder / "actions.parquet").to_pydict()
        names = ("p1_hp", "p2_hp", "p1_meter", "p2_meter", "timer")
        found.append((read_picture(folder / "first_frame.png"), {name: float(table[name][0]) for name in names}))
    if not found:
        raise InputError(f"no clip folder with a first_frame.png in {clips}", "give the folder of the real clips")
    return found


def outcome(reader: ProfileReader, picture: np.ndarray, truth: Truth) -> Counter[str]:
    """Right, wrong and unreadable elements of one picture."""
    elements = reader.read(picture).elements
    counts: Counter[str] = Counter()
    for name, true in truth.items():
        seen = elements[name]
        holds = seen.holds(true, reader.facts.tolerances[name])
        counts["unreadable" if not seen.readable else "right" if holds else "wrong"] += 1
    return counts


def degraded(reader: ProfileReader, frames: Frames) -> dict[str, dict[str, int]]:
    """Outcomes by size and degradation."""
    table: dict[str, dict[str, int]] = {}
    for size, grow in (("384x224", lambda p: p), ("832x480", stress.cover_size)):
        for name, degrade in stress.degradations().items():
            total: Counter[str] = Counter()
            for picture, truth in frames:
                total += outcome(reader, degrade(grow(picture)), truth)
            table[f"{size} {name}"] = dict(total)
    return table


def refused(reader: ProfileReader, frames: Frames) -> dict[str, int]:
    """Readings of foreign pictures and of covered elements, which should not be."""
    counts: Counter[str] = Counter()
    scenes = tuple(picture for picture, _ in frames)
    for _, picture in stress.foreign_pictures(200, scenes=scenes):
        counts["foreign pictures"] += 1
        counts["foreign pictures with a reading"] += any(e.readable for e in reader.read(picture).elements.values())
    rng = np.random.default_rng(1)
    for i in range(1000):
        picture, truth = frames[i % len(frames)]
        name = reader.facts.elements[int(rng.integers(len(reader.facts.elements)))]
        whole = stress.cover_size(picture) if i % 2 else picture
        seen = reader.read(stress.covered(whole, reader.profile, name, rng)).elements[name]
        counts["covered elements"] += 1
        counts["covered, unreadable"] += not seen.readable
        counts["covered, read wrong"] += seen.readable and not seen.holds(truth[name], reader.facts.tolerances[name])
    return dict(counts)


def speed(reader: ProfileReader, frames: Frames) -> dict[str, float]:
    """Frames per second of CPU time, one thread, as a video and one by one."""
    found = {}
    for size, grow in (("384x224", lambda p: p), ("832x480", stress.cover_size)):
        video = np.stack([grow(frames[0][0])] * 200)
        for how, read in (("video", reader.read_video), ("single", lambda v: [reader.read(f) for f in v])):
            start = time.process_time()
            read(video)
            found[f"{size} {how}"] = len(video) / (time.process_time() - start)
    return found


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path)
    parser.add_argument("--profile", default="sf3")
    parser.add_argument("--out", type=Path, default=Path("hud_reader.json"))
    options = parser.parse_args()
    try:
        frames, reader = load_frames(options.clips), ProfileReader(load_profile(options.profile))
    except SprlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    result = {
        "frames": len(frames),
        "degraded": degraded(reader, frames),
        "refused": refused(reader, frames),
        "frames_per_second": speed(reader, frames),
    }
    for name, counts in result["degraded"].items():
        print(f"{name:34} right {counts.get('right', 0):3}  wrong {counts.get('wrong', 0):3}  ", end="")
        print(f"unreadable {counts.get('unreadable', 0):3}")
    for part in ("refused", "frames_per_second"):
        for name, value in result[part].items():
            print(f"{name:34} {value:.0f}")
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
