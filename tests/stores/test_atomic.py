"""Atomic writes: whatever fails, the final name holds the old contents or the new ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stateplay_rl.errors import EXIT_OUTSIDE, OutsideError
from stateplay_rl.stores import atomic, layout


class Killed(BaseException):
    """Stands for the end of the process."""


def fail_with(error: BaseException):
    def fail(*_args: object, **_kwargs: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_kill_before_the_rename_keeps_the_old_file(tmp_path: Path, monkeypatch, step: str) -> None:
    file = tmp_path / "a.json"
    atomic.write_json(file, {"v": 1})
    monkeypatch.setattr(os, step, fail_with(Killed()))
    with pytest.raises(Killed):
        atomic.write_json(file, {"v": 2})
    assert file.read_text() == '{\n  "v": 1\n}\n'


def test_a_hard_kill_leaves_only_a_private_name_which_is_removed_later(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    leftover = layout.temp_name(file, "123")
    leftover.write_bytes(b"half")
    (tmp_path / "sub").mkdir()
    layout.temp_name(tmp_path / "sub" / "step-3", "123").mkdir()
    atomic.write_bytes(file, b"whole")
    atomic.remove_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.bin", "sub"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_or_read_only_disk_is_exit_5_with_the_bytes_needed(tmp_path: Path, monkeypatch, code: int) -> None:
    monkeypatch.setattr(os, "fsync", fail_with(OSError(code, os.strerror(code))))
    with pytest.raises(OutsideError, match="1000 bytes needed") as caught:
        atomic.write_bytes(tmp_path / "a.bin", bytes(1000))
    assert caught.value.exit_code == EXIT_OUTSIDE
    assert "--resume" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_really_full_device_is_exit_5(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with (
        open("/dev/full", "wb", buffering=0) as file,
        pytest.raises(OutsideError, match="no space left"),
        atomic.disk_errors(tmp_path, 10),
    ):
        file.write(b"x")


def test_other_system_errors_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        atomic.write_bytes(_folder(tmp_path / "taken", "x"), b"")


def _folder(path: Path, child: str) -> Path:
    (path / child).mkdir(parents=True)
    return path


def test_space_is_estimated_before_a_long_run(tmp_path: Path) -> None:
    atomic.require_space(tmp_path / "not" / "yet" / "there", 1)
    with pytest.raises(OutsideError, match=f"{1 << 62} bytes needed"):
        atomic.require_space(tmp_path, 1 << 62)


def test_the_writer_hashes_what_it_writes(tmp_path: Path) -> None:
    with atomic.HashingWriter(tmp_path / "big") as writer:
        writer.write(b"ab")
        writer.write(b"c")
        assert not (tmp_path / "big").exists()
    assert writer.size == 3
    assert writer.sha256 == atomic.sha256_file(tmp_path / "big") == atomic.sha256_bytes(b"abc")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "step-1"
    with pytest.raises(Killed):
        _write_half(final)
    assert list(tmp_path.iterdir()) == []
    with atomic.atomic_dir(final) as temp:
        (temp / "a").write_text("whole")
    assert (final / "a").read_text() == "whole"
    with pytest.raises(FileExistsError), atomic.atomic_dir(final):
        pass
    with atomic.atomic_dir(final, replace=True) as temp:
        (temp / "b").write_text("new")
    assert [p.name for p in final.iterdir()] == ["b"]
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]


def _write_half(final: Path) -> None:
    with atomic.atomic_dir(final) as temp:
        (temp / "a").write_text("half")
        raise Killed


def test_json_refuses_nan_and_has_one_canonical_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        atomic.write_json(tmp_path / "a", {"score": float("nan")})
    assert not (tmp_path / "a").exists()
    assert atomic.canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'
    assert atomic.sha256_json({"a": 1, "b": 2}) == atomic.sha256_json({"b": 2, "a": 1})
