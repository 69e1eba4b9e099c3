"""Clips on disk: the real data's columns and types, the same bytes for the same seed."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stateplay_rl.arena.clips import METADATA_COLUMNS, METADATA_FILE, STATE_COLUMNS, write_clips
from stateplay_rl.arena.dataset import CLEAR_CHANGE, draw_conditions, render, simulate
from stateplay_rl.arena.make_clips import parse_class_mix
from stateplay_rl.arena.pixels import read_first_state
from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.errors import OutputError, UsageError
from stateplay_rl.stores.video import decode_mp4, probe_mp4


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_a_data_set_has_the_real_format(tmp_path: Path) -> None:
    out = tmp_path / "data"
    summary = write_clips(out, 4, seed=2)
    assert summary.clips == 4
    with (out / METADATA_FILE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == METADATA_COLUMNS
    for row, condition in zip(rows, draw_conditions(4, 2, minimum=CLEAR_CHANGE), strict=True):
        assert row["distribution"] == condition.mechanics_class
        assert row["prompt"] == condition.prompt
        assert f"Strategy({row['strategy']})" in row["prompt"]
        facts = probe_mp4(out / row["video"])
        assert (facts.width, facts.height, facts.fps, facts.frames_decoded) == (96, 64, 20.0, 36)
        table = pq.read_table(out / row["action"])
        assert tuple(table.column_names) == ("frame_id", *STATE_COLUMNS, *BUTTONS)
        assert set(table.schema.types) == {pa.int32()}
        written = np.stack([table.column(name).to_numpy() for name in BUTTONS], axis=1)
        assert np.array_equal(written[::4], condition.held_buttons[::4])
        assert not written[np.arange(36) % 4 != 0].any()
        assert table.column("p2_hp").to_pylist()[:33] == simulate(condition).hp[:, 1].tolist()
        assert read_first_state(decode_mp4(out / row["video"])[0]) == condition.first


def test_the_bytes_depend_on_the_seed_only(tmp_path: Path) -> None:
    for name, seed, workers in (("a", 4, 1), ("b", 4, 2), ("c", 5, 1)):
        write_clips(tmp_path / name, 18, seed, {"normal": 1.0}, workers)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert tree(tmp_path / "a") != tree(tmp_path / "c")


def test_an_output_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(OutputError, match="not an empty folder"):
        write_clips(tmp_path, 1, 0)
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_the_command_reads_class_mixes() -> None:
    assert parse_class_mix("normal=3, macro_fail=1") == {"normal": 3.0, "macro_fail": 1.0}
    assert parse_class_mix(" ") is None
    with pytest.raises(UsageError, match="name=share"):
        parse_class_mix("normal:3")


def test_encoding_keeps_the_picture_close(tmp_path: Path) -> None:
    write_clips(tmp_path / "d", 1, 0)
    decoded = decode_mp4(tmp_path / "d" / "clips" / "clip_000000" / "video.mp4")
    drawn = render(simulate(draw_conditions(1, 0)[0]))
    assert np.abs(decoded[:33].astype(int) - drawn).mean() < 6
