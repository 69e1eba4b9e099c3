"""Paths out of a CSV never lead out of the data root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stateplay_rl.conditions.codes import RowRejected
from stateplay_rl.conditions.paths import resolve_inside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    (data / "a").mkdir(parents=True)
    (data / "a" / "v.mp4").write_bytes(b"x")
    (data / "empty.mp4").write_bytes(b"")
    (tmp_path / "outside.mp4").write_bytes(b"x")
    (tmp_path / "data2").mkdir()
    (tmp_path / "data2" / "v.mp4").write_bytes(b"x")
    (data / "link_out.mp4").symlink_to(tmp_path / "outside.mp4")
    (data / "folder_out").symlink_to(tmp_path / "data2")
    (data / "link_in.mp4").symlink_to(data / "a" / "v.mp4")
    (data / "loop.mp4").symlink_to(data / "loop.mp4")
    os.mkfifo(data / "pipe.mp4")
    return data


@pytest.mark.parametrize("text", ["a/v.mp4", "a\\v.mp4", "./a//v.mp4", "a/../a/v.mp4", "link_in.mp4"])
def test_good_paths(root: Path, text: str) -> None:
    assert resolve_inside(root, text, "video") == root / "a" / "v.mp4"


def test_absolute_path_inside_the_root_is_good(root: Path) -> None:
    assert resolve_inside(root, str(root / "a" / "v.mp4"), "video") == root / "a" / "v.mp4"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "missing_path"),
        ("  ", "missing_path"),
        ("a\0b.mp4", "bad_path"),
        ("x" * 5000, "bad_path"),
        ("loop.mp4", "bad_path"),
        ("../outside.mp4", "outside_data_root"),
        ("..\\outside.mp4", "outside_data_root"),
        ("a/../../outside.mp4", "outside_data_root"),
        ("../data2/v.mp4", "outside_data_root"),
        ("/etc/passwd", "outside_data_root"),
        ("C:\\data\\v.mp4", "outside_data_root"),
        ("\\\\server\\share\\v.mp4", "outside_data_root"),
        ("link_out.mp4", "outside_data_root"),
        ("folder_out/v.mp4", "outside_data_root"),
        ("none.mp4", "missing_video"),
        ("a/v.mp4/deeper.mp4", "missing_video"),
        ("a", "not_a_file"),
        ("pipe.mp4", "not_a_file"),
        ("empty.mp4", "empty_video"),
    ],
)
def test_bad_paths_have_their_reason(root: Path, text: str, code: str) -> None:
    with pytest.raises(RowRejected) as caught:
        resolve_inside(root, text, "video")
    assert caught.value.code == code
