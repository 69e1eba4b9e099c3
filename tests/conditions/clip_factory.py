"""Small clips in the real data's format, sound ones and damaged ones, for the tests of this area."""

from __future__ import annotations

import csv
import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from stateplay_rl.conditions.examine import Outcome
from stateplay_rl.conditions.source import SourceRow
from stateplay_rl.config.base import load_config
from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.config.conditions import ConditionsConfig
from stateplay_rl.stores.atomic import disk_errors
from stateplay_rl.stores.video import encode_mp4

COLUMNS = ("video", "action", "distribution", "prompt", "strategy", "category")
CLASSES = ("normal", "Macro_success", "macro_fail", "Result_win", "result_lose")
FRAMES = 20
WIDTH, HEIGHT = 96, 64


def real_clips() -> Path:
    """Folder of the eight real clips; may be absent."""
    default = Path(__file__).parents[2].parent / "shared" / "stateplay_clips"
    return Path(os.environ.get("STATEPLAY_CLIPS", default))


def arena_config(*overrides: str) -> ConditionsConfig:
    """The arena preset with overrides."""
    return load_config(ConditionsConfig, None, ["preset=arena", *overrides])


def pictures(seed: int, frames: int = FRAMES, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """uint8 [T, h, w, 3]: a seeded mosaic that wanders."""
    mosaic = np.random.default_rng(seed).integers(0, 255, (8, 12, 3), dtype=np.uint8)
    large = np.asarray(Image.fromarray(mosaic).resize((width, height), Image.Resampling.NEAREST))
    return np.stack([np.roll(large, step, axis=1) for step in range(frames)])


def table(seed: int, rows: int = FRAMES, window: int = 4) -> dict[str, np.ndarray]:
    """Columns of an action table, presses in row 0 of each window."""
    random = np.random.default_rng([seed, 1])
    columns: dict[str, np.ndarray] = {"frame_id": np.arange(rows)}
    for name in ("p1_hp", "p2_hp", "p1_meter", "p2_meter"):
        columns[name] = np.full(rows, random.integers(0, 160))
    columns["macro_ready"] = np.zeros(rows)
    columns["timer"] = np.full(rows, random.integers(0, 99))
    for name in BUTTONS:
        presses = random.integers(0, 2, rows)
        presses[np.arange(rows) % window != 0] = 0
        columns[name] = presses
    return {name: values.astype(np.int32) for name, values in columns.items()}


def write_actions(path: Path, columns: Mapping[str, Any]) -> None:
    """Write an action table."""
    pq.write_table(pa.table(dict(columns)), path)


def make_clip(root: Path, name: str, seed: int, frames: int = FRAMES) -> dict[str, str]:
    """A sound clip `<root>/<name>/`; returns its CSV row."""
    folder = root / name
    folder.mkdir(parents=True)
    encode_mp4(folder / "video.mp4", pictures(seed, frames), 20.0)
    write_actions(folder / "actions.parquet", table(seed, frames))
    return {
        "video": f"{name}/video.mp4",
        "action": f"{name}/actions.parquet",
        "distribution": CLASSES[seed % len(CLASSES)],
        "prompt": f"NPC: strategy {seed}",
        "strategy": "Passive Guarding",
        "category": "Defense",
    }


def make_rows(root: Path, count: int) -> list[dict[str, str]]:
    """`count` sound clips."""
    return [make_clip(root, f"clip{seed:03d}", seed) for seed in range(count)]


def write_csv(path: Path, rows: Sequence[Mapping[str, str]], columns: Sequence[str] = COLUMNS) -> Path:
    """A metadata CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def make_clip_folder(root: Path, name: str, seed: int, **metadata: Any) -> Path:
    """A clip folder without video, as the public samples are."""
    folder = root / name
    folder.mkdir(parents=True)
    Image.fromarray(pictures(seed, 1)[0]).save(folder / "first_frame.png")
    write_actions(folder / "actions.parquet", table(seed))
    values = {"distribution": "normal", "prompt": f"NPC {seed}", "strategy": "s", "category": "c", **metadata}
    (folder / "metadata.json").write_text(json.dumps(values), encoding="utf-8")
    (folder / "prompt.txt").write_text(f"NPC {seed}\n", encoding="utf-8")
    return folder


def write_uneven_video(path: Path, times: Sequence[int], time_base: int = 1000) -> None:
    """A video whose frames come at the given times, in units of 1 / `time_base` seconds."""
    from fractions import Fraction

    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=20)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.time_base = Fraction(1, time_base)
        for time, picture in zip(times, pictures(0, len(times)), strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, time_base)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _truncate(path: Path, keep: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def _overwrite_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + len(data) // 4] = bytes(len(data) // 4)
    path.write_bytes(bytes(data))


def _change(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A fault of the action table: `change` edits the columns in place."""

    def damage(folder: Path) -> None:
        columns: dict[str, Any] = table(3)
        change(columns)
        write_actions(folder / "actions.parquet", columns)

    damage.__name__ = name
    return damage


def _value(column: str, row: int, value: float) -> Callable[[dict[str, Any]], None]:
    def change(columns: dict[str, Any]) -> None:
        columns[column] = columns[column].astype(np.float64)
        columns[column][row] = value

    return change


# Faults of one clip: what to do to its folder, and the reason code that must come out.
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing video": (lambda f: (f / "video.mp4").unlink(), "missing_video"),
    "empty video": (lambda f: (f / "video.mp4").write_bytes(b""), "empty_video"),
    "text as video": (lambda f: (f / "video.mp4").write_text("<html>404</html>" * 50), "unreadable_video"),
    "video cut between frames": (lambda f: _cut_between_frames(f / "video.mp4"), "truncated_video"),
    "video cut in a frame": (lambda f: _truncate(f / "video.mp4", 0.6), "truncated_video"),
    "video cut in its index": (lambda f: _truncate(f / "video.mp4", 0.02), "unreadable_video"),
    "unknown codec": (lambda f: _rename_codec(f / "video.mp4"), "unreadable_video"),
    "damaged frames": (lambda f: _overwrite_middle(f / "video.mp4"), "truncated_video"),
    "folder as video": (lambda f: ((f / "video.mp4").unlink(), (f / "video.mp4").mkdir()), "not_a_file"),
    "pipe as video": (lambda f: ((f / "video.mp4").unlink(), os.mkfifo(f / "video.mp4")), "not_a_file"),
    "one frame": (lambda f: encode_mp4(f / "video.mp4", pictures(0, 1), 20.0), "one_frame"),
    "four frames": (lambda f: encode_mp4(f / "video.mp4", pictures(0, 4), 20.0), "too_short"),
    "too many frames": (lambda f: encode_mp4(f / "video.mp4", pictures(0, 110), 20.0), "too_many_frames"),
    "25 fps": (lambda f: encode_mp4(f / "video.mp4", pictures(0), 25.0), "wrong_fps"),
    "uneven frames": (
        lambda f: write_uneven_video(f / "video.mp4", [50 * i + (30 if i % 2 else 0) for i in range(FRAMES)]),
        "variable_frame_rate",
    ),
    "gap between frames": (
        lambda f: write_uneven_video(f / "video.mp4", [50 * i + (400 if i > 9 else 0) for i in range(FRAMES)]),
        "variable_frame_rate",
    ),
    "tiny picture": (
        lambda f: encode_mp4(f / "video.mp4", pictures(0, width=8, height=8), 20.0),
        "picture_size",
    ),
    "narrow picture": (
        lambda f: encode_mp4(f / "video.mp4", pictures(0, width=400, height=16), 20.0),
        "picture_size",
    ),
    "missing actions": (lambda f: (f / "actions.parquet").unlink(), "missing_actions"),
    "empty actions": (lambda f: (f / "actions.parquet").write_bytes(b""), "empty_actions"),
    "text as actions": (
        lambda f: (f / "actions.parquet").write_text("version https://git-lfs"),
        "unreadable_actions",
    ),
    "truncated actions": (lambda f: _truncate(f / "actions.parquet", 0.5), "unreadable_actions"),
    "missing button": (_change("missing", lambda c: c.pop("Y")), "missing_button_column"),
    "text column": (_change("text", lambda c: c.update(A=["0"] * FRAMES)), "column_type"),
    "nan button": (_change("nan", _value("B", 4, np.nan)), "not_a_number"),
    "nan state": (_change("nan", _value("timer", 3, np.nan)), "not_a_number"),
    "infinite state": (_change("inf", _value("p1_hp", 0, np.inf)), "not_a_number"),
    "null button": (
        _change("null", lambda c: c.update(C=pa.array([None] + [0] * (FRAMES - 1)))),
        "not_a_number",
    ),
    "button 2": (_change("two", _value("UP", 4, 2)), "button_values"),
    "button -1": (_change("minus", _value("UP", 4, -1)), "button_values"),
    "button 0.5": (_change("half", _value("UP", 4, 0.5)), "button_values"),
    "more rows": (lambda f: write_actions(f / "actions.parquet", table(0, 28)), "rows_not_frames"),
    "fewer rows": (lambda f: write_actions(f / "actions.parquet", table(0, FRAMES - 1)), "rows_not_frames"),
    "zero rows": (lambda f: write_actions(f / "actions.parquet", table(0, 0)), "zero_rows"),
    "frame ids jump": (_change("ids", _value("frame_id", 7, 70)), "frame_ids"),
    "absurd row count": (
        lambda f: write_actions(f / "actions.parquet", {n: np.zeros(50_000, np.int32) for n in table(0)}),
        "actions_too_large",
    ),
    "absurd column count": (
        lambda f: write_actions(f / "actions.parquet", {**table(0), **{f"x{i}": table(0)["UP"] for i in range(300)}}),
        "actions_too_large",
    ),
    "five megabytes": (
        lambda f: (f / "actions.parquet").write_bytes(bytes(5 * 2**20)),
        "actions_too_large",
    ),
}


def _rename_codec(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b"avc1", b"zzzz").replace(b"avcC", b"zzzC"))


def _cut_between_frames(path: Path) -> None:
    """An MP4 whose index promises all frames, cut where the data of one begin."""
    with av.open(str(path)) as container:
        starts = sorted(packet.pos for packet in container.demux(video=0) if packet.size)
    path.write_bytes(path.read_bytes()[: starts[12]])


def write_doubled_column(path: Path) -> None:
    """An action table with the column UP twice."""
    columns = table(0)
    names = [*columns, "UP"]
    pq.write_table(pa.Table.from_arrays([pa.array(columns[name]) for name in names], names=names), path)


def full_disk(row: SourceRow, key: str) -> Outcome:
    """Stands for a worker that meets a full disk."""
    with disk_errors(Path("frames/x.png"), 5):
        raise OSError(errno.ENOSPC, "No space left on device")
