"""The pixels of one bar and its surroundings, cut out once in native rows and columns; everything else slices them.

Shapes: Y X native rows and columns (X from the bar's anchored side outwards), C = 3 colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.evaluation.placement import Floats, Picture, Placement, channel_of, sample
from stateplay_rl.evaluation.profile import BarProfile

BESIDE = 3
"""Rows beyond the outermost frame line that a strip holds."""


class BarGeometry:
    """A bar's rows and columns as index arrays into its strip; made once for a profile."""

    def __init__(self, bar: BarProfile) -> None:
        self.bar = bar
        box, lines = bar.box, bar.frame.rows
        scene = bar.scene_rows or (box.top, box.bottom)
        self.first_row = min(*(line.at for line in lines), box.top) - BESIDE
        self.first_row = max(0, min(self.first_row, scene[0]))
        self.past_row = max(*(line.at + 1 for line in lines), box.bottom, scene[1]) + BESIDE
        self.rows_Y = np.arange(self.first_row, self.past_row, dtype=np.float64)
        self.columns_X = np.arange(box.left, box.right, dtype=np.float64)
        self.outwards = slice(None, None, -1 if bar.fills_from == "right" else 1)
        self.inner = slice(box.top - self.first_row, box.bottom - self.first_row)
        # The outer rows of a high bar mix with the frame.
        inset = 1 if box.height > 3 else 0
        self.middle = slice(self.inner.start + inset, self.inner.stop - inset)
        self.scene = slice(scene[0] - self.first_row, scene[1] - self.first_row)
        self.rims = [row - self.first_row for row in bar.rim_rows]
        self.line_rows = np.array([line.at - self.first_row for line in lines])
        self.line_signs = np.array([1.0 if line.shade == "light" else -1.0 for line in lines])
        self.line_colours = np.array([line.colour for line in lines], np.float32)
        self.line_levels = channel_of(self.line_colours, bar.frame.channel).astype(np.float32)
        self.framed_X = self._flags([(bar.frame.first_column, bar.frame.last_column + 1)])
        self.free_X = self._flags(bar.scene_free)
        self.sides = [
            self._pairs([line.at for line in lines if line.at < box.top]),
            self._pairs([line.at for line in lines if line.at >= box.bottom]),
        ]

    def _flags(self, spans: list[tuple[int, int]] | tuple[tuple[int, int], ...]) -> NDArray[np.bool_]:
        """Which columns of the strip lie in the spans [first, past)."""
        flags_X = np.zeros(self.bar.box.width, np.bool_)
        for first, past in spans:
            flags_X[max(first - self.bar.box.left, 0) : max(past - self.bar.box.left, 0)] = True
        return flags_X[self.outwards]

    def _pairs(self, rows: list[int]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Strip rows of neighbouring (light, dark) lines on one side of the bar."""
        shade = {line.at: line.shade for line in self.bar.frame.rows}
        light = [at for at in rows if shade[at] == "light"]
        dark = [at for at in rows if shade[at] == "dark"]
        pairs = {(at, min(dark, key=lambda other: abs(other - at))) for at in light}
        pairs |= {(min(light, key=lambda other: abs(other - at)), at) for at in dark}
        over, under = zip(*sorted(pairs), strict=True)
        return np.array(over) - self.first_row, np.array(under) - self.first_row


@dataclass(frozen=True)
class BarStrip:
    """A bar's pixels float32 [Y, X, 3] and the channel of its frame [Y, X]."""

    geometry: BarGeometry
    pixels_YXC: Floats
    channel_YX: Floats


def cut_strip(picture_hwC: Picture, place: Placement, geometry: BarGeometry) -> BarStrip | None:
    """The strip of a bar; None if part of bar or frame lies outside the picture."""
    rows, columns = place.rows(geometry.rows_Y), place.columns(geometry.columns_X)
    height, width = picture_hwC.shape[:2]
    lines = rows[geometry.line_rows]
    slack = 0.5 * place.scale_x
    if columns[0] < -slack or columns[-1] > width - 1 + slack or lines.min() < -slack:
        return None
    if lines.max() > height - 1 + slack:
        return None
    pixels_YXC = sample(picture_hwC, rows, columns)[:, geometry.outwards]
    return BarStrip(geometry, pixels_YXC, channel_of(pixels_YXC, geometry.bar.frame.channel))


def middle(values: NDArray[Any]) -> Any:
    """Upper median over the first axis; the library's own takes five times as long on arrays of this size."""
    return np.sort(values, axis=0)[len(values) // 2]
