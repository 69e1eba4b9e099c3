"""How blurred a picture is, from the HUD's own lines, and what a bar's colour becomes under that blur.

A bar is a few rows high: after a VAE or a codec its colour is a mixture with the lines around it. The lines are known,
so the mixture is too. Blur is the deviation (native pixels) of a Gaussian over rows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.evaluation.placement import Picture, Placement, channel_of, sample
from stateplay_rl.evaluation.profile import BarProfile, Colour

SIGMAS = (0.0, 0.3, 0.45, 0.6, 0.75, 0.9, 1.05, 1.2, 1.35, 1.5)
"""Blurs that are told apart; a more blurred picture counts as the last."""
BESIDE = 3
"""Rows beyond the outermost line at which the scene is looked at."""


def estimate_blur(picture_hwC: Picture, place: Placement, bars: list[BarProfile]) -> float:
    """The blur at which the contrast of the frame lines would be what it is.

    Args:
        picture_hwC: uint8 RGB.
        place: where the native HUD lies.
        bars: those whose frames the picture was aligned by.
    """
    found = [_blur_of(picture_hwC, place, bar) for bar in bars]
    return SIGMAS[round(sum(found) / len(found))]


def _blur_of(picture_hwC: Picture, place: Placement, bar: BarProfile) -> int:
    """Index of the blur that fits one bar's lines."""
    lines = bar.frame.rows
    first, last = min(line.at for line in lines) - BESIDE, max(line.at for line in lines) + BESIDE
    rows = np.arange(first, last + 1)
    columns = np.linspace(bar.frame.first_column, bar.frame.last_column, 40)
    seen_Y = channel_of(sample(picture_hwC, place.rows(rows), place.columns(columns)), bar.frame.channel).mean(axis=1)
    pattern_Y = np.where(rows < min(line.at for line in lines), seen_Y[0], seen_Y[-1]).astype(np.float64)
    inner = slice(bar.box.top - first, bar.box.bottom - first)
    pattern_Y[inner] = np.median(seen_Y[inner])
    for line in lines:
        pattern_Y[line.at - first] = channel_of(np.array(line.colour), bar.frame.channel)
    sign = np.zeros(len(rows))
    for line in lines:
        sign[line.at - first] = 1.0 if line.shade == "light" else -1.0
    contrasts = np.array([_gaussian(sigma, len(rows)) @ pattern_Y @ sign for sigma in SIGMAS])
    return int(np.argmin(np.abs(contrasts - seen_Y @ sign)))


def blurred_lines(bar: BarProfile, seen_YX: NDArray[np.float32], first_row: int, sigma: float) -> NDArray[np.float64]:
    """What the rows around a bar would be if its frame lines were there: those drawn sharp, then blurred.

    Args:
        bar: the bar's profile.
        seen_YX: the frame's channel over the rows from `first_row` on.
        first_row: native row of `seen_YX[0]`.
        sigma: blur, native pixels.
    """
    drawn_YX = seen_YX.astype(np.float64)
    for line in bar.frame.rows:
        drawn_YX[line.at - first_row] = channel_of(np.array(line.colour), bar.frame.channel)
    blurred: NDArray[np.float64] = _gaussian(sigma, len(drawn_YX)) @ drawn_YX
    return blurred


@lru_cache(maxsize=64)
def _gaussian(sigma: float, size: int) -> NDArray[np.float64]:
    """Rows of weights that sum to 1: [size, size]; sharp for 0."""
    if sigma == 0.0:
        return np.eye(size)
    apart = np.arange(size)[:, None] - np.arange(size)[None, :]
    weights = np.exp(-0.5 * (apart / sigma) ** 2)
    normalised: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normalised


@lru_cache(maxsize=512)
def blurred_colour(bar: BarProfile, colour: Colour, sigma: float) -> NDArray[np.float32]:
    """What the bar's middle rows look like when it is filled with `colour`: float32 [3].

    Rows that the profile says nothing about do not count.
    """
    known = {row: np.array(colour, np.float64) for row in range(bar.box.top, bar.box.bottom)}
    for line in bar.frame.rows:
        known[line.at] = np.array(line.colour, np.float64)
    rows = np.array(sorted(known))
    colours_YC = np.stack([known[row] for row in rows.tolist()])
    used = np.array(middle_rows(bar))
    if sigma == 0.0:
        weights_Y = np.isin(rows, used).astype(np.float64)
    else:
        weights_Y = np.exp(-0.5 * ((rows[None, :] - used[:, None]) / sigma) ** 2).sum(axis=0)
    mixed: NDArray[np.float32] = (weights_Y @ colours_YC / weights_Y.sum()).astype(np.float32)
    return mixed


def middle_rows(bar: BarProfile) -> range:
    """Rows of a bar that are read: without the outer ones when it is high enough."""
    inset = 1 if bar.box.height > 3 else 0
    return range(bar.box.top + inset, bar.box.bottom - inset)
