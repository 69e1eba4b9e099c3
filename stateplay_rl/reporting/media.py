"""Videos and pictures of the page: embedded up to a byte budget, linked relatively past it."""

from __future__ import annotations

import base64
import hashlib
import io
import os
from pathlib import Path
from urllib.parse import quote

from stateplay_rl.errors import CorruptionError
from stateplay_rl.stores.pictures import opened_picture

PIXEL_ART_WIDTH = 160
"""Pictures up to this width are enlarged without smoothing."""
THUMBNAIL_WIDTH = 416
JPEG_QUALITY = 82


class MediaTable:
    """The videos that lie inside the page, each once, and the links to all others.

    Args:
        out: the report's directory, from which links are counted.
        budget_bytes: most bytes of base64 text that may be embedded.
    """

    def __init__(self, out: Path, budget_bytes: int) -> None:
        self._out = Path(os.path.realpath(out))
        self._left = budget_bytes
        self.embedded: dict[str, str] = {}

    def embed(self, path: Path, sha256: str | None = None) -> str | None:
        """Key of the video inside the page; None if it does not fit the budget any more.

        Args:
            sha256: recorded hash of the file; checked when given.

        Raises:
            CorruptionError: the file is missing, unreadable, or not what was recorded.
        """
        needed = 4 * -(-_size(path) // 3)
        if needed > self._left:
            return None
        data = _read(path)
        found = hashlib.sha256(data).hexdigest()
        if sha256 is not None and found != sha256:
            raise CorruptionError(f"{path} does not match its recorded sha256", "restore the file from a copy")
        key = found[:20]
        if key not in self.embedded:
            self.embedded[key] = base64.b64encode(data).decode("ascii")
            self._left -= needed
        return key

    def picture(self, path: Path) -> tuple[str, bool]:
        """A still picture as a data URI, and whether it must be enlarged without smoothing.

        Small pictures stay as they are; larger ones become a JPEG of at most 416 px width. It is counted
        against the budget, but a picture that no longer fits is still shown: it is small.

        Raises:
            CorruptionError: the file is missing or not a picture.
        """
        data = _read(path)
        with opened_picture(data, path, ("PNG",)) as image:
            small = image.width <= PIXEL_ART_WIDTH
            if not small:
                picture = image.convert("RGB")
                picture.thumbnail((THUMBNAIL_WIDTH, THUMBNAIL_WIDTH))
                target = io.BytesIO()
                picture.save(target, format="JPEG", quality=JPEG_QUALITY)
                data = target.getvalue()
        text = base64.b64encode(data).decode("ascii")
        self._left -= len(text)
        return f"data:image/{'png' if small else 'jpeg'};base64,{text}", small

    def spend(self, used_bytes: int) -> None:
        """Count bytes of the page that are not media."""
        self._left -= used_bytes

    def link(self, path: Path) -> str:
        """The file's address relative to the report, with special characters quoted."""
        relative = os.path.relpath(os.path.realpath(path), self._out)
        return quote(Path(relative).as_posix())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _missing(path) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _missing(path) from error


def _missing(path: Path) -> CorruptionError:
    return CorruptionError(f"{path} cannot be read", f"run `sprl verify dir` on the directory that holds {path.name}")
