"""Which frames of a video a judge sees, and as which bytes.

Shapes: h w picture height and width.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from stateplay_rl.stores.pictures import read_picture

_SUBSAMPLING = 2
"""4:2:0, as in the videos that the frames come from."""
RESIZING = "lanczos"


@dataclass(frozen=True)
class Jpeg:
    """A picture as it is sent."""

    data: bytes
    width: int
    height: int


def frame_indices(frames: int, wanted: int) -> tuple[int, ...]:
    """Indices of the frames that are shown: ``np.linspace(0, N - 1, min(wanted, N), dtype=int)``.

    Args:
        frames: N, frames of the video, at least 1.
        wanted: frames to show.

    Raises:
        ValueError: no frame.
    """
    if frames < 1 or wanted < 1:
        raise ValueError(f"{wanted} of {frames} frames")
    return tuple(int(i) for i in np.linspace(0, frames - 1, min(wanted, frames), dtype=int))


def shown_size(width: int, height: int, longest_side: int) -> tuple[int, int]:
    """Width and height of a picture as it is shown: never enlarged, aspect kept."""
    longest = max(width, height)
    if longest <= longest_side:
        return width, height
    return max(1, round(width * longest_side / longest)), max(1, round(height * longest_side / longest))


def jpeg_of(picture_hwC: np.ndarray, longest_side: int, quality: int) -> Jpeg:
    """A uint8 RGB picture as JPEG; equal pictures give equal bytes."""
    image = Image.fromarray(np.ascontiguousarray(picture_hwC))
    size = shown_size(image.width, image.height, longest_side)
    if size != image.size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, subsampling=_SUBSAMPLING)
    return Jpeg(buffer.getvalue(), *size)


@lru_cache(maxsize=16)
def example_jpeg(path: Path, longest_side: int, quality: int) -> Jpeg:
    """A configured example image as it is sent; read once."""
    return jpeg_of(read_picture(path), longest_side, quality)
