"""PNG files of uint8 RGB pictures."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from stateplay_rl.errors import CorruptionError

_MAX_PIXELS = 1 << 26


def png_bytes(picture_hwC: np.ndarray) -> bytes:
    """A uint8 [h, w, 3] picture as PNG; lossless, and the same bytes for the same picture.

    Raises:
        ValueError: wrong shape or type.
    """
    from PIL import Image

    if picture_hwC.dtype != np.uint8 or picture_hwC.ndim != 3 or picture_hwC.shape[2] != 3:
        raise ValueError(f"picture must be uint8 [h, w, 3], got {picture_hwC.dtype} {picture_hwC.shape}")
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture_hwC)).save(buffer, "PNG")
    return buffer.getvalue()


def decode_png(data: bytes, source: Path) -> np.ndarray:
    """uint8 [h, w, 3] of a PNG.

    Raises:
        CorruptionError: not a readable picture, or absurdly large.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise CorruptionError(f"{source} claims {image.width}x{image.height} pixels", "replace the file")
            return np.asarray(image.convert("RGB")).copy()
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        if isinstance(error, CorruptionError):
            raise
        raise CorruptionError(f"{source} is not a readable PNG: {error}", "replace the file") from error
