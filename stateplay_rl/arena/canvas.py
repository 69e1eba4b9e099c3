"""A small canvas for sprites: boxes, limbs and outlines in pose space, packed for fast drawing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena.layout import Colour

CANVAS_WIDTH = 64
CANVAS_HEIGHT = 40
BELOW_FEET = 2
OUTLINE: Colour = (30, 26, 34)


@dataclass(frozen=True)
class Sprite:
    """Trimmed pixels, one uint32 (R, G, B, 0 in memory order) each, and where to draw them.

    Args:
        pixels_hw: uint32 [h, w].
        mask_hw: bool [h, w].
        left: Column of the first pixel, relative to the body centre.
        bottom: Rows below the feet at which the drawing ends.
    """

    pixels_hw: NDArray[np.uint32]
    mask_hw: NDArray[np.bool_]
    left: int
    bottom: int


def pack(colour: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """uint8 [..., 3] -> uint32 [...]: one word a pixel makes drawing four times as fast."""
    padded = np.zeros((*colour.shape[:-1], 4), np.uint8)
    padded[..., :3] = colour
    packed: NDArray[np.uint32] = padded.view(np.uint32)[..., 0]
    return packed


class Canvas:
    """Draws in pose space: x forward from the body centre, y up from the feet."""

    def __init__(self) -> None:
        self.colour = np.zeros((CANVAS_HEIGHT, CANVAS_WIDTH, 3), np.uint8)
        self.mask = np.zeros((CANVAS_HEIGHT, CANVAS_WIDTH), np.bool_)

    def box(self, left: int, right: int, bottom: int, top: int, colour: Colour) -> None:
        """Fill x in [left, right), y in [bottom, top)."""
        floor = CANVAS_HEIGHT - BELOW_FEET
        rows = slice(max(0, floor - top), min(CANVAS_HEIGHT, floor - bottom))
        columns = slice(max(0, CANVAS_WIDTH // 2 + left), min(CANVAS_WIDTH, CANVAS_WIDTH // 2 + right))
        self.colour[rows, columns] = colour
        self.mask[rows, columns] = True

    def limb(self, start: tuple[int, int], end: tuple[int, int], colour: Colour, thick: int = 3) -> None:
        """A straight limb of `thick` pixels from `start` to `end`."""
        length = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        low = thick // 2
        for i in range(length + 1):
            x = round(start[0] + (end[0] - start[0]) * i / length)
            y = round(start[1] + (end[1] - start[1]) * i / length)
            self.box(x - low, x - low + thick, y - low, y - low + thick, colour)

    def outline(self, colour: Colour = OUTLINE) -> None:
        """A one-pixel outline around all that is drawn so far."""
        drawn = self.mask
        grown = drawn.copy()
        grown[1:] |= drawn[:-1]
        grown[:-1] |= drawn[1:]
        grown[:, 1:] |= drawn[:, :-1]
        grown[:, :-1] |= drawn[:, 1:]
        edge = grown & ~drawn
        self.colour[edge] = colour
        self.mask[edge] = True

    def sprite(self, facing: int) -> Sprite:
        """The drawing, mirrored for a fighter who faces left."""
        step = 1 if facing > 0 else -1
        mask, pixels = self.mask[:, ::step], pack(self.colour)[:, ::step]
        rows, columns = np.nonzero(mask.any(axis=1))[0], np.nonzero(mask.any(axis=0))[0]
        box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        return Sprite(
            np.ascontiguousarray(pixels[box]),
            np.ascontiguousarray(mask[box]),
            int(columns[0]) - CANVAS_WIDTH // 2,
            int(rows[-1]) + 1 - (CANVAS_HEIGHT - BELOW_FEET),
        )
