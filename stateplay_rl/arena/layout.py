"""Geometry and colours of the arena's picture: one place for the renderer and the referee.

96x64 RGB. Bars, torsos and the floor start and end on even pixels, so that the 2x2 chroma subsampling
of yuv420p never mixes two regions. Colours of bars differ in luma, colours of torsos in chroma.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HEIGHT = 64
WIDTH = 96
HUD_ROWS = 14
FLOOR_ROW = 58
HP_PER_PIXEL = 4
METER_PER_PIXEL = 4

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Bar:
    """A bar: columns `left`..`left + length`, rows `top`..`bottom`; `fills_from` is the anchored side."""

    left: int
    length: int
    top: int
    bottom: int
    fills_from: str


# HP is anchored at the clock and shrinks from outside, as in the real game; the meter grows inwards.
HP_BARS = (Bar(2, 40, 2, 6, "right"), Bar(54, 40, 2, 6, "left"))
METER_BARS = (Bar(2, 20, 8, 12, "left"), Bar(74, 20, 8, 12, "right"))
TIMER_LEFT = (43, 49)
TIMER_TOP = 2

HUD_BACK: Colour = (18, 18, 26)
BAR_FRAME: Colour = (112, 112, 124)
BAR_EMPTY: Colour = (46, 40, 44)
HP_FULL: Colour = (240, 208, 72)
METER_FULL: Colour = (96, 216, 232)
TIMER_INK: Colour = (248, 248, 248)

# Torso colours are read by the referee: nothing else on the stage comes near them.
TORSOS: tuple[Colour, Colour] = ((44, 88, 216), (208, 48, 48))
TROUSERS: tuple[Colour, Colour] = ((228, 228, 232), (58, 54, 62))
HAIR: tuple[Colour, Colour] = ((84, 56, 36), (236, 216, 128))
SKIN: Colour = (236, 188, 148)
FIST: tuple[Colour, Colour] = ((250, 250, 250), (90, 82, 92))

# Torso boxes (half width, bottom and top above the feet) of the four stances.
TORSO_BOXES = ((4, 10, 20), (4, 6, 14), (4, 10, 20), (8, 0, 6))

# Digits 0-9, four columns by seven rows.
DIGITS = (
    ".##.#..##..##..##..##..#.##.",
    "..#..##...#...#...#...#..###",
    ".##.#..#...#..#..#..#...####",
    ".##.#..#...#.##....##..#.##.",
    "...#..##.#.##..#####...#...#",
    "#####...###....#...##..#.##.",
    ".##.#...#...###.#..##..#.##.",
    "####...#..#...#..#...#...#..",
    ".##.#..##..#.##.#..##..#.##.",
    ".##.#..##..#.###...#...#.##.",
)
DIGIT_ROWS = 7
DIGIT_COLUMNS = 4


def digit_ink(digit: int) -> NDArray[np.bool_]:
    """Where a digit has ink: bool [7, 4]."""
    marks = np.array([mark == "#" for mark in DIGITS[digit]])
    return marks.reshape(DIGIT_ROWS, DIGIT_COLUMNS)
