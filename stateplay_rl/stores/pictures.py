"""Picture files: written as PNG, read with every fault of their content named."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.errors import CorruptionError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
LARGEST_PIXELS = 1 << 26
"""A picture that claims more is not decoded."""


def png_bytes(picture_hwC: np.ndarray) -> bytes:
    """A uint8 [h, w, 3] picture as PNG; lossless, and the same bytes for the same picture.

    Raises:
        ValueError: wrong shape or type.
    """
    import PIL.Image

    if picture_hwC.dtype != np.uint8 or picture_hwC.ndim != 3 or picture_hwC.shape[2] != 3:
        raise ValueError(f"picture must be uint8 [h, w, 3], got {picture_hwC.dtype} {picture_hwC.shape}")
    buffer = io.BytesIO()
    PIL.Image.fromarray(np.ascontiguousarray(picture_hwC)).save(buffer, "PNG")
    return buffer.getvalue()


@contextmanager
def opened_picture(data: bytes, source: object, formats: Sequence[str] = FORMATS) -> Iterator[Image]:
    """A picture of which only the header was read; decode it inside the block, so that its faults are named too.

    Args:
        data: contents of the file.
        source: what messages call it.
        formats: what Pillow may take it for.

    Raises:
        CorruptionError: not a readable picture, or absurdly large.
    """
    import PIL.Image

    try:
        with catch_warnings():
            simplefilter("ignore", PIL.Image.DecompressionBombWarning)  # ours is the stricter limit
            image = PIL.Image.open(io.BytesIO(data), formats=tuple(formats))
        with image:
            if image.width * image.height > LARGEST_PIXELS:
                raise CorruptionError(f"{source} claims {image.width}x{image.height} pixels", "replace the file")
            yield image
    except CorruptionError:
        raise
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        kinds = ", ".join(formats)
        why = f"no {kinds}" if isinstance(error, PIL.UnidentifiedImageError) else error
        raise CorruptionError(f"{source} is not a readable picture: {why}", "replace the file") from error


def decode_picture(data: bytes, source: object, formats: Sequence[str] = FORMATS) -> NDArray[np.uint8]:
    """uint8 RGB [h, w, 3] of a picture's bytes.

    Raises:
        CorruptionError: as `opened_picture`.
    """
    with opened_picture(data, source, formats) as image:
        return np.asarray(image.convert("RGB"), dtype=np.uint8).copy()


def read_picture(path: Path) -> NDArray[np.uint8]:
    """uint8 RGB [h, w, 3] of a picture file.

    Raises:
        InputError: no such file, or it cannot be opened.
        CorruptionError: as `opened_picture`.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"picture {path} cannot be read: {error.strerror}", "check the path") from error
    return decode_picture(data, path)
