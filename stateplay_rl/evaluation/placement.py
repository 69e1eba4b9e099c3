"""Where the native HUD lies in a picture: first from the picture's size, then from the HUD's own frame lines.

A picture may be native, scaled to cover another size and cropped (as the model's frames are), cropped a few pixels
off, or slightly squeezed. Coordinates are pixel centres: native column x lies at `scale_x * (x + 0.5) + left - 0.5`.
Shapes: h w picture, Y X native rows and columns that are sampled, C = 3 colours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.evaluation.profile import BarProfile, HudProfile

Floats = NDArray[np.float32]
Picture = NDArray[np.uint8]

SEARCH_PIXELS = 8.0
"""How far off (native pixels) the picture may be shifted."""
SEARCH_SQUEEZE = 0.04
"""How far the horizontal scale may be off, as a share."""
_FINE = 0.25
_NEARNESS = 0.15
_MIN_END_CONTRAST = 8.0
"""Levels (of 255) by which a light end column must exceed the dark one inside it."""


@dataclass(frozen=True)
class Placement:
    """Native coordinates to picture coordinates, in picture pixels."""

    scale_x: float
    scale_y: float
    left: float
    top: float

    def columns(self, x_X: NDArray[Any]) -> NDArray[np.float64]:
        """Picture columns of native ones."""
        return self.scale_x * (np.asarray(x_X, np.float64) + 0.5) + self.left - 0.5

    def rows(self, y_Y: NDArray[Any]) -> NDArray[np.float64]:
        """Picture rows of native ones."""
        return self.scale_y * (np.asarray(y_Y, np.float64) + 0.5) + self.top - 0.5

    def shifted(self, x_pixels: float, y_pixels: float) -> Placement:
        """Moved by native pixels."""
        return replace(self, left=self.left + self.scale_x * x_pixels, top=self.top + self.scale_y * y_pixels)


def nominal_placements(height: int, width: int, profile: HudProfile) -> tuple[Placement, ...]:
    """Placements to try for a picture size: scaled to cover and centre-cropped; else squeezed, if that differs much."""
    scale = max(width / profile.width, height / profile.height)
    cover = Placement(
        scale,
        scale,
        -float(round((round(profile.width * scale) - width) / 2)),
        -float(round((round(profile.height * scale) - height) / 2)),
    )
    squeeze = Placement(width / profile.width, height / profile.height, 0.0, 0.0)
    ratio = squeeze.scale_x / squeeze.scale_y
    return (cover,) if abs(ratio - 1.0) < SEARCH_SQUEEZE else (cover, squeeze)


def sample(picture_hwC: Picture, rows_Y: NDArray[Any], columns_X: NDArray[Any]) -> Floats:
    """Bilinear samples float32 [Y, X, C] at picture rows and columns; past the border its pixels repeat."""
    height, width = picture_hwC.shape[:2]
    y0, wy = _taps(rows_Y, height)
    x0, wx = _taps(columns_X, width)
    first = int(x0[0])
    strip_YwC = picture_hwC[:, first : int(x0[-1]) + 2]
    upper, lower = strip_YwC[y0].astype(np.float32), strip_YwC[y0 + 1].astype(np.float32)
    mixed_YwC = upper + (lower - upper) * wy[:, None, None]
    left, right = mixed_YwC[:, x0 - first], mixed_YwC[:, x0 - first + 1]
    out: Floats = left + (right - left) * wx[None, :, None]
    return out


def _taps(positions: NDArray[Any], size: int) -> tuple[NDArray[np.intp], Floats]:
    inside = np.clip(positions, 0.0, size - 1.000001)
    base = np.minimum(inside.astype(np.intp), size - 2)
    return base, (inside - base).astype(np.float32)


_COLOURS = ("red", "green", "blue")


def channel_of(colours: NDArray[Any], channel: str) -> NDArray[Any]:
    """One number per pixel, from the last axis: a colour, or the smallest or largest of the three."""
    if channel in _COLOURS:
        one: NDArray[Any] = colours[..., _COLOURS.index(channel)]
        return one
    # By hand: a reduction over an axis of three is slow.
    pick = np.minimum if channel == "min" else np.maximum
    chosen: NDArray[Any] = pick(pick(colours[..., 0], colours[..., 1]), colours[..., 2])
    return chosen


def row_shift(
    picture_hwC: Picture, place: Placement, bars: list[BarProfile], reach: float = SEARCH_PIXELS
) -> tuple[float, float]:
    """Vertical shift within +-reach (native pixels) at which the frame lines fit best, and the contrast there."""
    shifts = np.arange(-reach, reach + _FINE, _FINE)
    total = np.zeros(len(shifts))
    for bar in bars:
        frame = bar.frame
        lines = np.array([line.at for line in frame.rows], np.float64)
        sign = _weights(bar)
        y_grid = np.arange(lines.min() - reach - 1, lines.max() + reach + 1.5, 0.5)
        x_grid = np.linspace(frame.first_column, frame.last_column, 48)
        height, width = picture_hwC.shape[:2]
        rows = np.clip(np.rint(place.rows(y_grid)).astype(np.intp), 0, height - 1)
        columns = np.clip(np.rint(place.columns(x_grid)).astype(np.intp), 0, width - 1)
        strip_YXC = picture_hwC[rows[:, None], columns[None, :]]
        profile_Y = channel_of(strip_YXC, frame.channel).mean(axis=1)
        at = place.rows(lines[None, :] + shifts[:, None])
        # Between whole picture rows; the strip holds each picture row once or twice.
        values = np.interp(at, rows + np.arange(len(rows)) * 1e-9, profile_Y)
        total += values @ sign
    total /= len(bars)
    best = int(np.argmax(total))
    return float(shifts[best]) + _FINE * _vertex(total, best), float(total[best])


def _weights(bar: BarProfile) -> NDArray[np.float64]:
    """+1 shared by the light lines, -1 shared by the dark ones."""
    light = np.array([line.shade == "light" for line in bar.frame.rows])
    weights: NDArray[np.float64] = np.where(light, 1.0 / light.sum(), -1.0 / (~light).sum())
    return weights


def fit_columns(
    picture_hwC: Picture,
    place: Placement,
    bars: list[BarProfile],
    reach: float = SEARCH_PIXELS,
    squeeze: float = SEARCH_SQUEEZE,
) -> tuple[Placement, int]:
    """Horizontal shift and squeeze that put the frames' end columns on light columns with dark ones inside.

    Args:
        picture_hwC: uint8 RGB.
        place: where the search starts; its rows are right.
        bars: those whose frames have ends.
        reach: largest shift, native pixels.
        squeeze: largest change of scale, a share.

    Returns:
        The fitted placement and how many ends show there.
    """
    ends = [(light, dark, bar) for bar in bars for light, dark in bar.frame.ends]
    squeezes = np.linspace(-squeeze, squeeze, 17) if squeeze else np.zeros(1)
    shifts = np.arange(-reach, reach + _FINE, _FINE)
    middle = float(np.mean([light for light, _, _ in ends]))
    contrast_ESD = np.stack([_end_contrast(picture_hwC, place, end, middle, squeezes, shifts) for end in ends])
    # A single bright spot must not decide.
    total_SD = np.minimum(contrast_ESD, 120.0).sum(axis=0)
    # In a blurred picture many placements fit nearly as well: the nearest to the nominal one is taken.
    total_SD -= _NEARNESS * total_SD.max() * (np.abs(squeezes[:, None]) / SEARCH_SQUEEZE)
    s, d = np.unravel_index(int(np.argmax(total_SD)), total_SD.shape)
    scale = place.scale_x * (1.0 + squeezes[s])
    shift = shifts[d] + _FINE * _vertex(total_SD[s], int(d))
    # The middle of the ends moves by the shift alone.
    centre = place.columns(np.array([middle]))[0] + place.scale_x * shift
    fitted = replace(place, scale_x=float(scale), left=float(centre + 0.5 - scale * (middle + 0.5)))
    return fitted, int((contrast_ESD[:, s, d] >= _MIN_END_CONTRAST).sum())


def _end_contrast(
    picture_hwC: Picture,
    place: Placement,
    end: tuple[int, int, BarProfile],
    middle: float,
    squeezes: NDArray[np.float64],
    shifts: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Light minus dark column, for every squeeze and shift."""
    light, dark, bar = end
    reach = float(shifts[-1] + squeezes[-1] * abs(light - middle)) + 3.0
    x_grid = np.arange(min(light, dark) - reach, max(light, dark) + reach, 0.5)
    y_grid = np.arange(bar.box.top, bar.box.bottom)
    strip_YXC = sample(picture_hwC, place.rows(y_grid), place.columns(x_grid))
    profile_X = channel_of(strip_YXC, bar.frame.channel).mean(axis=0)
    stretched = middle + (np.array([light, dark])[:, None, None] - middle) * (1.0 + squeezes[None, :, None])
    at = stretched + shifts[None, None, :]
    values = np.interp(at, x_grid, profile_X)
    contrast: NDArray[np.float64] = values[0] - values[1]
    return contrast


def _vertex(values: NDArray[np.float64], best: int) -> float:
    """Where the parabola through a peak and its neighbours has its top, in steps from the peak."""
    if not 0 < best < len(values) - 1:
        return 0.0
    before, peak, after = values[best - 1 : best + 2]
    bend = before - 2 * peak + after
    return 0.0 if bend >= 0 else float(np.clip(0.5 * (before - after) / bend, -0.5, 0.5))
