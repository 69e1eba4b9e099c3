"""The held buttons of a clip as a short run-length text, for the page's action timeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby


def encode_actions(rows: Iterable[Sequence[float | int | bool]]) -> str:
    """Rows of 11 buttons -> ``"<hex mask>x<rows>"`` items; bit k of a mask is button k (bit 0 = UP)."""
    masks = (sum(1 << index for index, value in enumerate(row) if value) for row in rows)
    return " ".join(f"{mask:x}x{sum(1 for _ in same)}" for mask, same in groupby(masks))


def decode_actions(text: str) -> tuple[int, ...]:
    """The mask of each row; the inverse of `encode_actions`."""
    masks: list[int] = []
    for item in text.split():
        mask, _, rows = item.partition("x")
        masks.extend([int(mask, 16)] * int(rows))
    return tuple(masks)
