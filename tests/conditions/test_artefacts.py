"""The files of one condition: a PNG that everybody reads, and no half files."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stateplay_rl.conditions import artefacts
from stateplay_rl.conditions.actions import read_action_table
from stateplay_rl.conditions.artefacts import fast_png, is_intact, write_artefacts
from stateplay_rl.errors import OutsideError
from tests.conditions.clip_factory import arena_config, pictures, table, write_actions


@given(width=st.integers(1, 40), height=st.integers(1, 20), seed=st.integers(0, 1000))
def test_png_is_lossless(width: int, height: int, seed: int) -> None:
    picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    with Image.open(io.BytesIO(fast_png(picture))) as image:
        image.load()
        assert (image.format, image.mode) == ("PNG", "RGB")
        assert np.array_equal(np.asarray(image), picture)
    assert fast_png(picture) == fast_png(picture.copy())


def write(tmp_path: Path) -> dict[str, artefacts.FileFact]:
    for name in ("frames", "actions", "states"):
        (tmp_path / name).mkdir(exist_ok=True)
    write_actions(tmp_path / "source.parquet", table(0))
    source = read_action_table(tmp_path / "source.parquet", arena_config().clip)
    return write_artefacts(tmp_path, "abc", pictures(0, 1)[0], source, source.raw_RK)


def test_files_are_on_record_and_damage_is_seen(tmp_path: Path) -> None:
    files = write(tmp_path)
    assert sorted(files) == ["actions/abc.parquet", "frames/abc.png", "states/abc.parquet"]
    assert is_intact(tmp_path, files)
    assert write(tmp_path) == files
    path = tmp_path / "states" / "abc.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    assert not is_intact(tmp_path, files)


def test_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(artefacts.os, "replace", full)
    with pytest.raises(OutsideError, match="bytes needed"):
        write(tmp_path)
    assert not any((tmp_path / "frames").iterdir())
