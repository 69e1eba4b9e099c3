"""Which frames are shown, how large, and as which bytes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.judges.frames import example_jpeg, frame_indices, jpeg_of, shown_size


@pytest.mark.parametrize("frames", [1, 2, 5, 23, 24, 25, 33, 97, 101])
def test_frames_follow_the_rule(frames: int) -> None:
    expected = np.linspace(0, frames - 1, min(24, frames), dtype=int).tolist()
    assert list(frame_indices(frames, 24)) == expected
    assert expected[0] == 0
    assert expected[-1] == frames - 1


def test_97_and_101_frames_by_hand() -> None:
    """Steps of 96/23 = 4.17 and 100/23 = 4.35, cut to whole frames."""
    assert frame_indices(97, 24)[:5] == (0, 4, 8, 12, 16)
    assert frame_indices(101, 24)[:5] == (0, 4, 8, 13, 17)
    assert frame_indices(101, 24)[-2:] == (95, 100)


def test_no_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="0 frames"):
        frame_indices(0, 24)


@pytest.mark.parametrize(
    "size, longest, shown",
    [
        ((832, 480), 832, (832, 480)),
        ((384, 224), 832, (384, 224)),
        ((1280, 720), 832, (832, 468)),
        ((480, 1664), 832, (240, 832)),
        ((4000, 1), 832, (832, 1)),
    ],
)
def test_pictures_are_scaled_down_only(size: tuple[int, int], longest: int, shown: tuple[int, int]) -> None:
    assert shown_size(*size, longest) == shown


def test_equal_pictures_give_equal_bytes_of_the_right_size() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (40, 90, 3), np.uint8)
    first, second = jpeg_of(picture, 45, 90), jpeg_of(picture.copy(), 45, 90)
    assert first == second
    with Image.open(io.BytesIO(first.data)) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (45, 20))
    assert jpeg_of(picture, 45, 50).data != first.data


def test_colours_are_kept_in_their_order() -> None:
    red = np.zeros((16, 16, 3), np.uint8)
    red[..., 0] = 200
    with Image.open(io.BytesIO(jpeg_of(red, 832, 95).data)) as image:
        r, g, b = image.getpixel((8, 8))
    assert r > 180
    assert max(g, b) < 20


def test_pictures_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.png"):
        example_jpeg(tmp_path / "none.png", 832, 90)
    (tmp_path / "page.png").write_text("<html>")
    with pytest.raises(CorruptionError, match=r"page\.png"):
        example_jpeg(tmp_path / "page.png", 832, 90)
