"""Embedding within a budget, links otherwise."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stateplay_rl.errors import CorruptionError
from stateplay_rl.reporting.media import THUMBNAIL_WIDTH, MediaTable


def picture_file(path: Path, width: int, height: int) -> Path:
    Image.fromarray(np.full((height, width, 3), 90, np.uint8)).save(path)
    return path


def test_a_file_is_embedded_once_and_counted_once(tmp_path: Path) -> None:
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).write_bytes(b"same bytes")
    media = MediaTable(tmp_path / "out", 20)
    key = media.embed(tmp_path / "a.mp4", hashlib.sha256(b"same bytes").hexdigest())
    assert key is not None
    assert base64.b64decode(media.embedded[key]) == b"same bytes"
    (tmp_path / "c.mp4").write_bytes(b"other")
    assert media.embed(tmp_path / "c.mp4") is None  # 16 of 20 bytes are spent


def test_a_changed_or_missing_file_is_corruption(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"changed")
    media = MediaTable(tmp_path / "out", 1000)
    with pytest.raises(CorruptionError, match=r"a\.mp4 does not match"):
        media.embed(tmp_path / "a.mp4", "00" * 32)
    with pytest.raises(CorruptionError, match="gone"):
        media.embed(tmp_path / "gone.mp4")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(CorruptionError, match="not a readable picture"):
        media.picture(tmp_path / "bad.png")


def test_links_are_relative_and_quoted(tmp_path: Path) -> None:
    media = MediaTable(tmp_path / "report", 0)
    assert media.link(tmp_path / "run 1" / "a#b.mp4") == "../run%201/a%23b.mp4"


def test_small_pictures_stay_exact_and_large_ones_shrink(tmp_path: Path) -> None:
    media = MediaTable(tmp_path / "out", 1_000_000)
    small = picture_file(tmp_path / "small.png", 96, 64)
    uri, pixelated = media.picture(small)
    assert pixelated
    assert base64.b64decode(uri.partition(",")[2]) == small.read_bytes()
    uri, pixelated = media.picture(picture_file(tmp_path / "large.png", 832, 480))
    assert not pixelated
    (tmp_path / "thumb.jpg").write_bytes(base64.b64decode(uri.partition(",")[2]))
    with Image.open(tmp_path / "thumb.jpg") as thumb:
        assert thumb.width == THUMBNAIL_WIDTH
