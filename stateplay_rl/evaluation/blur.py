"""How blurred a picture is, from the HUD's own lines, and what a bar's colours and lines become under that blur.

A bar is a few rows high: after a VAE or a codec its colour is a mixture with the lines around it. The lines are known,
so the mixture is too. Blur is the deviation (native pixels) of a Gaussian over rows. Shapes: Y X native rows
and columns.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.evaluation.placement import Floats
from stateplay_rl.evaluation.profile import Colour
from stateplay_rl.evaluation.strip import BESIDE, BarGeometry, BarStrip, middle

SIGMAS = (0.0, 0.3, 0.45, 0.6, 0.75, 0.9, 1.05, 1.2, 1.35, 1.5)
"""Blurs that are told apart; a more blurred picture counts as the last."""


def estimate_blur(strips: list[BarStrip]) -> float:
    """The blur at which the contrast of the frame lines would be what it is; 0 without strips."""
    return SIGMAS[round(sum(_blur_index(strip) for strip in strips) / len(strips))] if strips else 0.0


def _blur_index(strip: BarStrip) -> int:
    geometry = strip.geometry
    seen_Y = strip.channel_YX[:, ::4].mean(axis=1, dtype=np.float64)
    top, bottom = int(geometry.line_rows.min()), int(geometry.line_rows.max())
    drawn_Y = seen_Y.copy()
    # The scene next to the lines is read off some rows away, where they no longer bleed into it.
    drawn_Y[max(top - BESIDE, 0) : top] = seen_Y[max(top - BESIDE, 0)]
    drawn_Y[bottom + 1 :] = seen_Y[min(bottom + BESIDE, len(seen_Y) - 1)]
    drawn_Y[geometry.inner] = middle(seen_Y[geometry.inner])
    drawn_Y[geometry.line_rows] = geometry.line_levels
    contrasts = np.stack([_gaussian(sigma, len(seen_Y))[geometry.line_rows] @ drawn_Y for sigma in SIGMAS])
    seen = float(seen_Y[geometry.line_rows] @ geometry.line_signs)
    return int(np.argmin(np.abs(contrasts @ geometry.line_signs - seen)))


def blurred_lines(geometry: BarGeometry, around_YX: NDArray[np.floating], sigma: float) -> Floats:
    """A strip's channel as it would be if the frame lines were there: those drawn sharp, then all blurred."""
    drawn_YX = np.array(around_YX, np.float32)
    drawn_YX[geometry.line_rows] = geometry.line_levels[:, None]
    blurred: Floats = _gaussian(sigma, len(drawn_YX)).astype(np.float32) @ drawn_YX
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


def blurred_colour(geometry: BarGeometry, colour: Colour, sigma: float) -> Floats:
    """What the bar's middle rows look like when it is filled with `colour`: float32 [3].

    Rows that the profile says nothing about do not count.
    """
    rows = np.concatenate([np.arange(geometry.inner.start, geometry.inner.stop), geometry.line_rows])
    fill = np.tile(np.array(colour, np.float32), (geometry.inner.stop - geometry.inner.start, 1))
    colours_YC = np.concatenate([fill, geometry.line_colours])
    used = np.arange(geometry.middle.start, geometry.middle.stop)
    # Half a row's width stands for a sharp picture: its own row only.
    width = max(sigma, 0.1)
    weights_Y = np.exp(-0.5 * ((rows[None, :] - used[:, None]) / width) ** 2).sum(axis=0)
    mixed: Floats = (weights_Y @ colours_YC / weights_Y.sum()).astype(np.float32)
    return mixed
