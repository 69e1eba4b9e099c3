"""Is a bar there, and uncovered? Its frame lines, its rims and the scene behind its empty part must say so.

Shapes: Y X native rows and columns of a strip (X from the anchored side outwards), C = 3 colours, P pairs of lines.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.evaluation.blur import blurred_lines
from stateplay_rl.evaluation.placement import Floats, channel_of
from stateplay_rl.evaluation.strip import BarStrip, middle

# Frame lines: least share of the contrast due, least contrast (levels), and what may lack it.
MIN_AGREEMENT = 0.12
MIN_MEAN_CONTRAST = 6.0
MAX_COVERED_SHARE = 0.06
MAX_COVERED_RUN = 5
# A line whose contrast the blur leaves below this says nothing; this share of columns must say something.
MIN_DUE_CONTRAST = 14.0
MIN_DUE_SHARE = 0.95
MIN_TELLING_SHARE = 0.35
MAX_REVERSED = 0.8
# One pair of lines alone, beside others that are there: due share from which it tells, agreement that a codec leaves,
# and columns without it that only a cover explains (real frames, degraded: at most 18 and a share of 0.19).
PAIR_DUE_SHARE = 0.85
PAIR_AGREEMENT = 0.05
MAX_PAIR_RUN = 24
MAX_PAIR_SHARE = 0.25
# Rims are as bright as the fill between them, give or take so many levels, in most columns.
RIM_LEVELS = 60.0
RIM_HAZE = 130.0
MIN_RIM_SHARE = 0.6
# See-through test: distance of an empty column from the scene beside the bar, and the share that must be near.
SCENE_DISTANCE = 80.0
SCENE_REACH = 4
MIN_SCENE_SHARE = 0.5
MIN_SCENE_CORRELATION = 0.15
MIN_SCENE_COLUMNS = 30
MIN_FILL_COLUMNS = 3
FLAT_LEVELS = 2.5
NOISE_STEP = 90.0


def frame_problem(strip: BarStrip, sigma: float) -> tuple[str, float]:
    """What is wrong with the lines around a bar (empty: nothing), and their median contrast in levels.

    Each side is looked at on its own, and in it each pair of lines: a cover over one must not hide behind the others.
    Where the blur or a bright scene levels a line, nothing can be said; that may be so in a part of the columns only.
    """
    geometry = strip.geometry
    seen_YX = strip.channel_YX[:, geometry.framed_X]
    due_YX = blurred_lines(geometry, seen_YX, sigma)
    even_YX = blurred_lines(geometry, np.full((len(seen_YX), 1), 128.0), sigma)
    covered, contrasts, telling = False, [], []
    for over, under in geometry.sides:
        seen_PX, due_PX = smooth(seen_YX[over] - seen_YX[under]), smooth(due_YX[over] - due_YX[under])
        power_X = np.square(due_PX).sum(axis=0)
        agreement_X = (seen_PX * due_PX).sum(axis=0) / np.maximum(power_X, 1.0)
        # What a flat cover would hide; far below that, the scene itself levels the lines.
        even_P = even_YX[over, 0] - even_YX[under, 0]
        even = float(np.linalg.norm(even_P))
        telling_X = np.sqrt(power_X) >= max(MIN_DUE_CONTRAST, MIN_DUE_SHARE * even)
        # The other way round, no blur of a scene goes far: such columns belong to another pattern.
        reversed_X = (seen_PX * even_P[:, None]).sum(axis=0) < -MAX_REVERSED * even**2
        missing_X = (telling_X & (agreement_X < MIN_AGREEMENT)) | reversed_X
        covered |= bool(missing_X.mean() > MAX_COVERED_SHARE) or longest_run(missing_X) > MAX_COVERED_RUN
        covered |= _a_pair_is_lost(seen_PX, due_PX, even_P)
        telling.append(float(telling_X.mean()))
        contrasts.append(float(middle(seen_PX.mean(axis=0))))
    contrast = max(contrasts)
    if contrast < MIN_MEAN_CONTRAST:
        return "no frame", contrast
    return "frame covered" if covered or max(telling) < MIN_TELLING_SHARE else "", contrast


def _a_pair_is_lost(seen_PX: Floats, due_PX: Floats, even_P: Floats) -> bool:
    """Whether a pair of lines is missing over a stretch that neither a scene nor a codec takes away.

    A cover that leaves the outer lines of a side in view (a meter has five below it) is found by the inner ones.
    """
    least_P = np.maximum(MIN_DUE_CONTRAST, PAIR_DUE_SHARE * np.abs(even_P))
    telling_PX = (np.abs(due_PX) >= least_P[:, None]) & (due_PX * even_P[:, None] > 0.0)
    lost_PX = telling_PX & (seen_PX * due_PX < PAIR_AGREEMENT * np.square(due_PX))
    return any(longest_run(lost_X) > MAX_PAIR_RUN or lost_X.mean() > MAX_PAIR_SHARE for lost_X in lost_PX)


def rims_follow(strip: BarStrip, sigma: float) -> bool:
    """Whether the rows beside the box are as bright as the fill: a cover over the fill alone leaves them behind.

    Blur mixes the dark lines beyond them into the rims: they may then be further off.
    """
    geometry = strip.geometry
    if not geometry.rims:
        return True
    light_YX = channel_of(strip.pixels_YXC[:, geometry.framed_X], "max")
    rims_X, fill_X = smooth(np.stack([light_YX[geometry.rims].mean(axis=0), light_YX[geometry.middle].mean(axis=0)]))
    # Rims are hazy: beside a dark fill they are brighter than it, but never as bright as beside a bright one.
    brighter_X = np.maximum(RIM_LEVELS, RIM_HAZE - 0.5 * fill_X)
    follow_X = (rims_X - fill_X <= brighter_X * (1.0 + sigma)) & (fill_X - rims_X <= RIM_LEVELS * (1.0 + sigma))
    return float(follow_X.mean()) >= MIN_RIM_SHARE


def scene_problem(strip: BarStrip, mean_XC: Floats, end: int) -> str:
    """Whether the part past column `end` is something else than the scene behind it: flat, noise, another picture."""
    geometry = strip.geometry
    # A bar that shows some fill vouches for itself; one without any may be hidden behind something.
    if end >= MIN_FILL_COLUMNS:
        return ""
    steps_X = np.abs(np.diff(mean_XC[end:], axis=0)).sum(axis=1)
    if float(middle(steps_X)) > NOISE_STEP:
        return "empty part is noise"
    if geometry.bar.scene_rows is None:
        return ""
    columns = np.flatnonzero(geometry.free_X)
    columns = columns[columns >= end + 3]
    if len(columns) < MIN_SCENE_COLUMNS:
        return ""
    scene_XC = strip.pixels_YXC[geometry.scene].mean(axis=0)
    inside_X, beside_X = mean_XC[columns].mean(axis=1), scene_XC[columns].mean(axis=1)
    flat, lively = float(inside_X.std()), float(beside_X.std())
    if flat < FLAT_LEVELS and lively > 4 * FLAT_LEVELS:
        return "empty part is flat"
    if geometry.bar.scene_test == "lively":
        return ""
    # Slanted things in the scene pass the bar a few columns aside.
    around_XN = np.clip(columns[:, None] + np.arange(-SCENE_REACH, SCENE_REACH + 1, 2), 0, len(mean_XC) - 1)
    apart_XN = np.square(mean_XC[columns][:, None] - scene_XC[around_XN]).sum(axis=2)
    near = float((apart_XN.min(axis=1) <= SCENE_DISTANCE**2).mean())
    together = float(np.corrcoef(inside_X, beside_X)[0, 1]) if min(flat, lively) > 0.0 else 0.0
    return "" if near >= MIN_SCENE_SHARE or together >= MIN_SCENE_CORRELATION else "empty part does not show the scene"


def smooth(values_PX: NDArray[np.floating]) -> Floats:
    """Mean over three columns."""
    padded = np.concatenate([values_PX[:, :1], values_PX, values_PX[:, -1:]], axis=1)
    mean: Floats = (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / np.float32(3.0)
    return mean


def longest_run(flags_X: NDArray[np.bool_]) -> int:
    """Length of the longest run of true flags."""
    if not flags_X.any():
        return 0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags_X.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max())
