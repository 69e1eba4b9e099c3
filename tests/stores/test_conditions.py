"""Conditions directories: round trip, checks on reading, containment of clip paths."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from stateplay_rl.errors import CorruptionError, InputError, UnsealedError
from stateplay_rl.stores.conditions import (
    CONDITION_COLUMNS,
    ConditionRecord,
    ConditionStore,
    RejectedRow,
    hash_actions,
    read_rejected,
    write_condition_files,
    write_conditions,
)
from stateplay_rl.stores.hashing import hash_frames
from tests.stores.helpers import open_out, pictures

RAW = np.zeros((20, 11), np.int64)
RAW[10, 3] = 1
HELD = np.zeros((20, 11), np.float32)
HELD[10:, 3] = 1


def record(condition_id: str, order: int, pool: str = "pass") -> ConditionRecord:
    return ConditionRecord(
        condition_id=condition_id,
        clip="videos/a.mp4" if order else None,
        prompt="SF3 Game. ünïcode",
        mechanics_class="result_win",
        distribution="Result_win",
        npc_category="Control",
        strategy="",
        fps=20.0,
        frames=17,
        latent_frames=5,
        action_rows=20,
        action_bin_edges=((0, 1), (1, 5)),
        first_frame_sha256=hash_frames(pictures(1, order)[0]),
        actions_sha256=hash_actions(RAW),
        cluster_id=order,
        pool=pool,  # type: ignore[arg-type]
        student_split="train",
        order=order,
        warnings=("rows_not_frames",),
    )


def build(folder: Path, seal: bool = True) -> list[ConditionRecord]:
    records = [record("c2", 2, "heldout"), record("c0", 0), record("c1", 1)]
    with open_out(folder, schema="conditions", command="build-conditions") as out:
        for item in records:
            states = {"p1_hp": np.arange(20), "speed": np.linspace(0, 1, 20)} if item.order else {}
            write_condition_files(out, item.condition_id, pictures(1, item.order)[0], RAW, HELD, states)
        write_conditions(
            out, records, [RejectedRow(9, "b.mp4", "video_truncated", "3 of 9"), RejectedRow(4, "", "x", "")]
        )
        if seal:
            out.seal(extra={"data_root": "../data"})
    return records


def test_everything_is_read_back(tmp_path: Path) -> None:
    records = build(tmp_path / "c")
    store = ConditionStore.open(tmp_path / "c")
    assert store.records == tuple(sorted(records, key=lambda r: r.order))
    assert [r.condition_id for r in store.select("pass")] == ["c0", "c1"]
    assert [r.condition_id for r in store.select("heldout")] == ["c2"]
    assert len(store.select()) == len(store) == 3
    assert np.array_equal(store.first_frame("c1"), pictures(1, 1)[0])
    assert hash_frames(store.first_frame("c1")) == store.by_id("c1").first_frame_sha256
    assert store.held_actions("c1").dtype == np.float32
    assert np.array_equal(store.held_actions("c1"), HELD)
    assert hash_actions(store.raw_actions("c1")) == store.by_id("c1").actions_sha256
    assert list(store.states("c1")) == ["p1_hp", "speed"]
    assert store.states("c1")["p1_hp"].tolist() == list(range(20))
    assert store.states("c0") == {}
    assert [row.row for row in read_rejected(tmp_path / "c")] == [4, 9]
    assert len(store.manifest_sha256) == 64


def test_unfinished_and_foreign_directories_are_refused(tmp_path: Path) -> None:
    build(tmp_path / "c", seal=False)
    with pytest.raises(UnsealedError, match="unfinished"):
        ConditionStore.open(tmp_path / "c")


@pytest.mark.parametrize("name", ["frames/c1.png", "actions/c1.parquet", "states/c1.parquet"])
def test_a_damaged_file_is_named_when_it_is_read(tmp_path: Path, name: str) -> None:
    build(tmp_path / "c")
    store = ConditionStore.open(tmp_path / "c")
    file = tmp_path / "c" / name
    file.write_bytes(file.read_bytes()[:-3])
    read = {"frames": store.first_frame, "actions": store.held_actions, "states": store.states}
    with pytest.raises(CorruptionError, match=name.replace(".", r"\.")):
        read[name.split("/")[0]]("c1")
    store.first_frame("c2")


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    build(tmp_path / "c")
    (tmp_path / "c" / "conditions.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptionError, match=r"conditions\.parquet"):
        ConditionStore.open(tmp_path / "c")


def test_unknown_conditions_are_refused(tmp_path: Path) -> None:
    build(tmp_path / "c")
    with pytest.raises(InputError, match="no condition 'zz'"):
        ConditionStore.open(tmp_path / "c").held_actions("zz")


def test_clips_are_found_below_the_data_root_only(tmp_path: Path) -> None:
    build(tmp_path / "c")
    store = ConditionStore.open(tmp_path / "c")
    assert store.clip_path(store.by_id("c0")) is None
    with pytest.raises(InputError, match=r"data root .* does not exist") as caught:
        store.clip_path(store.by_id("c1"))
    # The hint is for every command: only build-conditions knows --data-root.
    assert "put the clips back" in caught.value.hint
    assert "sprl build-conditions --csv FILE --data-root FOLDER" in caught.value.hint
    (tmp_path / "data" / "videos").mkdir(parents=True)
    with pytest.raises(InputError, match="does not exist"):
        store.clip_path(store.by_id("c1"))
    (tmp_path / "data" / "videos" / "a.mp4").write_bytes(b"x")
    assert store.clip_path(store.by_id("c1")) == tmp_path / "data" / "videos" / "a.mp4"
    (tmp_path / "data").rename(tmp_path / "moved")
    moved = ConditionStore.open(tmp_path / "c", data_root=tmp_path / "moved")
    assert moved.clip_path(moved.by_id("c1")) == tmp_path / "moved" / "videos" / "a.mp4"
    (tmp_path / "secret").write_text("x")
    (tmp_path / "moved" / "link").symlink_to(tmp_path / "secret")
    for clip in ("../secret", str(tmp_path / "secret"), "link"):
        with pytest.raises(InputError, match="outside"):
            moved.clip_path(replace(moved.by_id("c1"), clip=clip))


def test_duplicates_are_refused(tmp_path: Path) -> None:
    with open_out(tmp_path / "c", schema="conditions") as out:
        with pytest.raises(ValueError, match="same condition_id"):
            write_conditions(out, [record("c", 0), record("c", 1)])
        with pytest.raises(ValueError, match="same order"):
            write_conditions(out, [record("c", 0), record("d", 0)])


def test_tables_of_wrong_shape_are_refused(tmp_path: Path) -> None:
    with open_out(tmp_path / "c", schema="conditions") as out, pytest.raises(ValueError, match="rows, 11"):
        write_condition_files(out, "c", pictures(1)[0], RAW, HELD[:5], {})


def test_the_table_has_a_column_for_every_field() -> None:
    assert {field.name for field in fields(ConditionRecord)} == set(CONDITION_COLUMNS)
