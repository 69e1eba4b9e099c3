"""The clock: digits whose ink fits a glyph best, or unreadable.

Ink is where a pixel lies near the line between the digit's top and bottom colour. A cell's ink is compared with
every glyph by correlation, at a few shifts that all cells share. Shapes: Y X native rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.evaluation.placement import Picture, Placement, sample
from stateplay_rl.evaluation.profile import TimerProfile

Floats = NDArray[np.float32]

SHIFT_PIXELS = 2
"""The digits may lie this far from where the bars put them."""
INK_DISTANCE = 110.0
"""RGB distance from the ink's colours at which a pixel counts half."""
MIN_CORRELATION = 0.75
MIN_LEAD = 0.10
"""Least correlation of the best glyph, and its lead over the second. Whole digits keep 0.89 and 0.22 at worst on real
frames, degraded as in `stress`; a pillar of the ink's colour over a digit looks like a 1 with up to 0.72."""
_MARGIN = SHIFT_PIXELS + 1


@dataclass(frozen=True)
class TimerReading:
    """The clock's value, or why it cannot be read. `confidence` 0..1 is the weakest digit's lead, scaled."""

    value: int | None
    confidence: float
    reason: str = ""

    @property
    def readable(self) -> bool:
        return not self.reason


def read_timer(picture_hwC: Picture, place: Placement, timer: TimerProfile) -> TimerReading:
    """Read the clock.

    Args:
        picture_hwC: uint8 RGB.
        place: where the native HUD lies.
        timer: the clock's profile.
    """
    scores_CSD = np.stack([_cell_scores(picture_hwC, place, timer, cell) for cell in timer.cells])
    shift = int(np.argmax(scores_CSD.max(axis=2).sum(axis=0)))
    value, confidence = 0, 1.0
    for scores_D in scores_CSD[:, shift]:
        second, best = np.partition(scores_D, -2)[-2:]
        if best < MIN_CORRELATION:
            return TimerReading(None, 0.0, "no digit")
        if best - second < MIN_LEAD:
            return TimerReading(None, 0.0, "two digits fit alike")
        value = 10 * value + int(np.argmax(scores_D))
        confidence = min(confidence, float(best), float((best - second) / (3 * MIN_LEAD)))
    return TimerReading(value, confidence)


def _cell_scores(picture_hwC: Picture, place: Placement, timer: TimerProfile, cell: tuple[int, int]) -> Floats:
    """Correlation of the cell's ink with every glyph at every shift: [shifts, 10]."""
    left, top = cell
    rows = np.arange(top - _MARGIN, top + timer.height + _MARGIN)
    columns = np.arange(left - _MARGIN, left + timer.width + _MARGIN)
    height, width = picture_hwC.shape[:2]
    at_rows, at_columns = place.rows(rows), place.columns(columns)
    if at_rows[_MARGIN] < -1 or at_columns[_MARGIN] < -1 or at_rows[-_MARGIN] > height or at_columns[-_MARGIN] > width:
        return np.zeros(((2 * SHIFT_PIXELS + 1) ** 2, 10), np.float32)
    ink_YX = ink(sample(picture_hwC, at_rows, at_columns), timer)
    windows = np.lib.stride_tricks.sliding_window_view(ink_YX, (timer.height + 2, timer.width + 2))
    windows_SP = windows.reshape(-1, (timer.height + 2) * (timer.width + 2))
    centred_SP = windows_SP - windows_SP.mean(axis=1, keepdims=True)
    size_S = np.linalg.norm(centred_SP, axis=1)
    scores: Floats = centred_SP @ _glyphs(timer).T / np.maximum(size_S, 1e-3)[:, None]
    return scores


def ink(pixels_YXC: Floats, timer: TimerProfile) -> Floats:
    """How much each pixel is of the digits' colour, 0..1: near the line between the two ink colours."""
    top_C, bottom_C = (np.array(colour, np.float32) for colour in timer.ink)
    line_C = bottom_C - top_C
    along_YX = np.clip((pixels_YXC - top_C) @ line_C / float(line_C @ line_C), 0.0, 1.0)
    away_YX = np.linalg.norm(pixels_YXC - top_C - along_YX[..., None] * line_C, axis=-1)
    amount: Floats = np.clip(1.5 - away_YX / INK_DISTANCE, 0.0, 1.0)
    return amount


@lru_cache(maxsize=8)
def _glyphs_of(rows: tuple[tuple[str, ...], ...]) -> Floats:
    """Centred, normalised glyphs with a margin of one pixel, slightly blurred: [10, P]."""
    masks_DYX = np.array([[[mark == "#" for mark in row] for row in glyph] for glyph in rows], np.float32)
    padded = np.pad(masks_DYX, ((0, 0), (2, 2), (2, 2)))
    blurred = sum(
        weight_y * weight_x * padded[:, dy : padded.shape[1] - 2 + dy, dx : padded.shape[2] - 2 + dx]
        for dy, weight_y in enumerate((0.2, 0.6, 0.2))
        for dx, weight_x in enumerate((0.2, 0.6, 0.2))
    )
    flat_DP = np.asarray(blurred, np.float32).reshape(len(rows), -1)
    centred_DP = flat_DP - flat_DP.mean(axis=1, keepdims=True)
    glyphs: Floats = centred_DP / np.linalg.norm(centred_DP, axis=1, keepdims=True)
    return glyphs


def _glyphs(timer: TimerProfile) -> Floats:
    return _glyphs_of(tuple(tuple(timer.glyphs[str(digit)]) for digit in range(10)))
