"""Groups: written last line last, replaced when half written, damage named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from stateplay_rl.errors import CorruptionError, InputError, OutsideError
from stateplay_rl.stores import atomic
from stateplay_rl.stores.groups import (
    GroupRow,
    GroupStore,
    StoredGroup,
    read_groups_parquet,
    write_groups_parquet,
)
from stateplay_rl.stores.hashing import hash_frames, hash_tensor
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.stores.video import decode_mp4
from tests.stores.helpers import group_record, latents, open_out, pictures


def write(store: GroupStore, group_id: str = "g-1", reference: bool = True) -> StoredGroup:
    return store.write(
        group_record(group_id),
        pictures(1)[0],
        [latents(0), latents(1)],
        [pictures(5, 0), pictures(5, 1)],
        pictures(5, 2) if reference else None,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_a_group_is_read_back_with_all_its_parts(tmp_path: Path) -> None:
    store = GroupStore(tmp_path / "groups")
    written = write(store)
    group = store.read("g-1")
    assert group == written
    assert group.record.latents_sha256 == (hash_tensor(latents(0)), hash_tensor(latents(1)))
    assert group.record.frames_sha256 == (hash_frames(pictures(5, 0)), hash_frames(pictures(5, 1)))
    assert torch.equal(group.latents(1), latents(1))
    assert group.record.prompt == "SF3 Game. <b>é</b>"
    assert decode_mp4(group.candidate_video(1)).shape == (5, 16, 32, 3)
    assert group.reference_video() is not None
    assert group.first_frame_path().is_file()
    group.verify()
    with pytest.raises(IndexError):
        group.latents(2)


def test_the_same_group_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(GroupStore(tmp_path / name))
    assert contents(tmp_path / "one" / "g-1") == contents(tmp_path / "two" / "g-1")


def test_sealing_reads_no_group_again(tmp_path: Path, monkeypatch) -> None:
    out, read, real = open_out(tmp_path / "out"), [], atomic.sha256_file
    write(GroupStore(out.path / "groups", out.hasher))
    monkeypatch.setattr(atomic, "sha256_file", lambda path: (read.append(path.name), real(path))[1])
    out.seal()
    assert read == ["config.yaml"]
    assert read_manifest(tmp_path / "out", verify_files=True)


def test_a_condition_without_video_has_no_reference(tmp_path: Path) -> None:
    store = GroupStore(tmp_path)
    write(store, reference=False)
    assert store.read("g-1").reference_video() is None
    assert not store.read("g-1").record.has_reference


@pytest.mark.parametrize("kill_at", range(0, 12, 2))
def test_a_half_written_group_is_unfinished_and_replaced(tmp_path: Path, monkeypatch, kill_at: int) -> None:
    """Kill at one of the renames: until the last (group.json) the group does not exist."""
    store, renames, real = GroupStore(tmp_path / "groups"), iter(range(100)), os.replace

    def replace(source: str, target: str) -> None:
        if next(renames) == kill_at:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        try:
            write(store)
        except KeyboardInterrupt:
            assert not store.exists("g-1")
            assert store.finished() == ()
            with pytest.raises(InputError, match="no finished group"):
                store.read("g-1")
    if not store.exists("g-1"):
        write(store)
    write(GroupStore(tmp_path / "uninterrupted"))
    assert contents(tmp_path / "groups" / "g-1") == contents(tmp_path / "uninterrupted" / "g-1")


def test_a_full_disk_leaves_the_group_unfinished(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutsideError, match="bytes needed"):
        write(GroupStore(tmp_path))
    assert GroupStore(tmp_path).finished() == ()


def test_a_finished_group_is_never_written_again(tmp_path: Path) -> None:
    write(GroupStore(tmp_path))
    with pytest.raises(ValueError, match="already finished"):
        write(GroupStore(tmp_path))


def test_wrong_numbers_types_and_hashes_are_refused(tmp_path: Path) -> None:
    store, first, videos = GroupStore(tmp_path), pictures(1)[0], [pictures(5, 0), pictures(5, 1)]
    with pytest.raises(ValueError, match="2 seeds, 1 latents"):
        store.write(group_record(), first, [latents(0)], videos)
    with pytest.raises(ValueError, match="bfloat16"):
        store.write(group_record(), first, [latents(0).float(), latents(1).float()], videos)
    with pytest.raises(ValueError, match="NaN"):
        store.write(group_record(), first, [latents(0), latents(1) * float("nan")], videos)
    record = group_record(latents_sha256=("a", "b"))
    with pytest.raises(ValueError, match="latents_sha256"):
        store.write(record, first, [latents(0), latents(1)], videos)
    assert store.finished() == ()


@pytest.mark.parametrize("group_id", ["../x", "a/b", "", ".hidden", "x" * 200, "a\x00b"])
def test_an_id_cannot_leave_the_folder(tmp_path: Path, group_id: str) -> None:
    with pytest.raises(InputError, match="group_id"):
        GroupStore(tmp_path).exists(group_id)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    store = GroupStore(tmp_path)
    group = write(store)
    file = group.folder / "candidate_0.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptionError, match=r"candidate_0\.safetensors does not match field 'latents_sha256'"):
        group.latents(0)
    with pytest.raises(CorruptionError, match=r"candidate_0\.safetensors"):
        group.verify()
    for broken in (data[:20], b"", b"\xff" * 8 + b"{}"):
        file.write_bytes(broken)
        with pytest.raises(CorruptionError, match="cannot be read"):
            group.latents(0)
    file.write_bytes(data)
    group.candidate_video(1).unlink()
    with pytest.raises(CorruptionError, match=r"candidate_1\.mp4 is missing"):
        group.verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": None}, "seeds"),
        ({"surprise": 1}, "surprise"),
        ({"seeds": [1]}, "differ in length"),
        ({"group_id": "other"}, "field 'group_id'"),
        ({"version": None}, "lacks field 'version'"),
        ({"files": {"../x": "0"}}, "file"),
    ],
)
def test_a_damaged_record_names_the_field(tmp_path: Path, change: dict, message: str) -> None:
    file = write(GroupStore(tmp_path)).folder / "group.json"
    raw = json.loads(file.read_text()) | change
    file.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))
    with pytest.raises(InputError, match=message):
        GroupStore(tmp_path).read("g-1")


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    file = write(GroupStore(tmp_path)).folder / "group.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 2}))
    with pytest.raises(InputError, match="version 2, this sprl reads 1"):
        GroupStore(tmp_path).read("g-1")


def test_the_index_is_sorted_and_round_trips(tmp_path: Path) -> None:
    store = GroupStore(tmp_path)
    rows = [GroupRow.of(write(store, name)) for name in ("g-2", "g-1")]
    rows.append(GroupRow("g-0", "c9", 1, "p", "w", "euler", 4, (), "failed", "video damaged"))
    write_groups_parquet(tmp_path / "groups.parquet", rows)
    found = read_groups_parquet(tmp_path / "groups.parquet")
    assert [row.group_id for row in found] == ["g-1", "g-2", "g-0"]
    assert set(found) == set(rows)
    assert store.hashes() == {row.group_id: row.group_sha256 for row in found if row.status == "finished"}


def test_frames_must_be_bytes() -> None:
    with pytest.raises(TypeError, match="uint8"):
        hash_frames(np.zeros((1, 2, 2, 3), np.float32))
    assert hash_frames(np.zeros((1, 2, 2, 3), np.uint8)) != hash_frames(np.zeros((2, 1, 2, 3), np.uint8))
