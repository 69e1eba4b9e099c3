"""A request's bytes, made while they are sent: pictures are read from the store and never held together.

With thirty requests of 13 MB in flight, whole bodies (and the copies that a client makes of them) would take a
gigabyte.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator

from stateplay_rl.errors import CorruptionError
from stateplay_rl.judges.payload import IMAGE_SCHEME, Payload
from stateplay_rl.stores.atomic import canonical_json, sha256_bytes

_PREFIX = "data:image/jpeg;base64,"
_CHUNK_BYTES = 1 << 18
# Inside a JSON text an unescaped quote ends a string: data can never form this.
_IMAGE = re.compile(r'"url":"' + IMAGE_SCHEME + r'([0-9a-f]{64})"')


class RequestBody:
    """The JSON bytes of a payload; iterating sends them, any number of times.

    Args:
        payload: the request.
        read_image: bytes of a picture by its hash.
    """

    def __init__(self, payload: Payload, read_image: Callable[[str], bytes]) -> None:
        self._pieces = _IMAGE.split(canonical_json(payload.body))
        self._read = read_image
        sizes = {image.sha256: image.size for image in payload.images}
        texts = sum(len(piece.encode("utf-8")) for piece in self._pieces[::2])
        self.length = texts + sum(_encoded_length(sizes[sha256]) for sha256 in self._pieces[1::2])
        """Length in bytes."""
        self.started = False
        """Whether any byte has been handed out to be sent."""

    def __iter__(self) -> Iterator[bytes]:
        waiting: list[bytes] = []
        size = 0
        for index, piece in enumerate(self._pieces):
            data = piece.encode("utf-8") if index % 2 == 0 else self._image(piece)
            waiting.append(data)
            size += len(data)
            if size >= _CHUNK_BYTES:
                self.started = True
                yield b"".join(waiting)
                waiting, size = [], 0
        self.started = True
        yield b"".join(waiting)

    def _image(self, sha256: str) -> bytes:
        data = self._read(sha256)
        if sha256_bytes(data) != sha256:
            raise CorruptionError(
                f"the stored picture {sha256}.jpg is damaged", "remove it from requests/images: it is made again"
            )
        return b'"url":"' + _PREFIX.encode() + base64.b64encode(data) + b'"'


def _encoded_length(size: int) -> int:
    return len('"url":""') + len(_PREFIX) + 4 * -(-size // 3)


def body_bytes(payload: Payload, read_image: Callable[[str], bytes]) -> bytes:
    """The whole body at once: for previews and tests."""
    return b"".join(RequestBody(payload, read_image))
