"""One bar of a HUD: its length, the draining part, or why it cannot be read.

A bar is read as a sequence of columns from its anchored side: first solid, then perhaps draining, then empty. The
cut points are those of the largest likelihood; the place of a cut between two columns comes from the mixture of the
colours at its sides. Shapes: Y X native rows and columns of a bar (X from the anchored side outwards), C = 3 colours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.evaluation.blur import BESIDE, blurred_colour, blurred_lines, middle_rows
from stateplay_rl.evaluation.placement import Picture, Placement, channel_of, row_shift, sample
from stateplay_rl.evaluation.profile import BarProfile

Floats = NDArray[np.float32]

# RGB distance (0..441) at which a column is as likely of a colour as not; blurs and codecs stay far below.
COLOUR_DISTANCE = 80.0
FITTED_DISTANCE = (44.0, 80.0)
"""The same, once colour and noise were learned from the bar itself: smallest and largest."""
LARGEST_COLOUR_SHIFT = 90.0
"""A learned colour may be this far from the profile's."""
_GAIN = 2.0
_LOSS = 6.0
_FEW_COLUMNS = 6
# Frame lines: least share of the contrast due, least contrast (levels), and share of columns that may lack it.
MIN_AGREEMENT = 0.12
MIN_MEAN_CONTRAST = 6.0
# A line whose contrast the blur leaves below this says nothing; this share of columns must say something.
MIN_DUE_CONTRAST = 14.0
MIN_DUE_SHARE = 0.7
MIN_TELLING_SHARE = 0.35
MAX_COVERED_SHARE = 0.06
MAX_COVERED_RUN = 5
# Columns of another colour inside the solid part; solid-coloured columns past its end.
MAX_HOLE = 1
MAX_ISLAND = 7
# See-through test: distance of an empty column from the scene beside the bar, and the share that must be near.
SCENE_DISTANCE = 80.0
SCENE_REACH = 4
MIN_SCENE_SHARE = 0.5
MIN_SCENE_CORRELATION = 0.15
_MIN_SCENE_COLUMNS = 30
FLAT_LEVELS = 2.5
NOISE_STEP = 110.0
# Rims are as bright as the fill between them, give or take so many levels, in most columns.
RIM_LEVELS = 60.0
MIN_RIM_SHARE = 0.6
_MIN_EDGE_CONTRAST = 50.0
_EDGE_REACH = 6
_MIN_EDGE_STEP = 25.0
# A column below this log-likelihood (of at most 2) either way may lie on either side; so many are too many.
UNCLEAR_GAIN = 0.7
MAX_UNCLEAR = 4
_UNCLEAR_REACH = 12


@dataclass(frozen=True)
class BarReading:
    """What a bar shows: `solid` and `solid + drain` in points, or why it cannot be read.

    Args:
        solid: points of the solid part; NaN if unreadable.
        drain: points of the part that drains; NaN if unreadable.
        confidence: 0..1; 0 if unreadable.
        reason: empty, or what is wrong.
    """

    solid: float
    drain: float
    confidence: float
    reason: str = ""

    @property
    def readable(self) -> bool:
        return not self.reason


def unreadable(reason: str) -> BarReading:
    """No reading, with the reason."""
    return BarReading(float("nan"), float("nan"), 0.0, reason)


def read_bar(picture_hwC: Picture, place: Placement, bar: BarProfile, sigma: float, fix_rows: bool) -> BarReading:
    """Read one bar.

    Args:
        picture_hwC: uint8 RGB.
        place: where the native HUD lies.
        bar: the bar's profile.
        sigma: the picture's blur, native pixels.
        fix_rows: find the bar's rows anew (far from those that the picture was aligned by).
    """
    if fix_rows:
        shift, _ = row_shift(picture_hwC, place, [bar])
        place = place.shifted(0.0, shift)
    if not _inside(picture_hwC, place, bar):
        return unreadable("outside the picture")
    covered, contrast = _frame_contrast(picture_hwC, place, bar, sigma)
    if contrast < MIN_MEAN_CONTRAST:
        return unreadable("no frame")
    if covered:
        return unreadable("frame covered")
    inner_YXC = _inner(picture_hwC, place, bar)
    if not _rims_follow(picture_hwC, place, bar):
        return unreadable("fill covered")
    return _read_columns(inner_YXC, bar, sigma, _scene(picture_hwC, place, bar), contrast)


def _rims_follow(picture_hwC: Picture, place: Placement, bar: BarProfile) -> bool:
    """Whether the rows beside the box are as bright as the fill: a cover over the fill alone leaves them behind."""
    if not bar.rim_rows:
        return True
    columns = place.columns(np.arange(bar.frame.first_column, min(bar.frame.last_column + 1, bar.box.right)))
    rims_YX = channel_of(sample(picture_hwC, place.rows(np.array(bar.rim_rows)), columns), "max")
    fill_YX = channel_of(sample(picture_hwC, place.rows(np.array(middle_rows(bar))), columns), "max")
    apart_X = _smooth(rims_YX.mean(axis=0, keepdims=True) - fill_YX.mean(axis=0, keepdims=True))[0]
    return float((np.abs(apart_X) <= RIM_LEVELS).mean()) >= MIN_RIM_SHARE


def _inside(picture_hwC: Picture, place: Placement, bar: BarProfile) -> bool:
    height, width = picture_hwC.shape[:2]
    lines = [line.at for line in bar.frame.rows]
    top, bottom = place.rows(np.array([min(bar.box.top, *lines), max(bar.box.bottom - 1, *lines)], np.float64))
    left, right = place.columns(np.array([bar.box.left, bar.box.right - 1], np.float64))
    slack = 0.5 * place.scale_x
    return bool(left > -slack and right < width - 1 + slack and top > -slack and bottom < height - 1 + slack)


def _frame_contrast(picture_hwC: Picture, place: Placement, bar: BarProfile, sigma: float) -> tuple[bool, float]:
    """Whether lines are missing over a stretch of columns, and the median contrast (levels) of light and dark lines.

    Where the blur alone would level a line (a bright scene on its dark side), nothing can be said; that may be so in a
    part of the columns only.
    """
    frame = bar.frame
    lines = np.array([line.at for line in frame.rows])
    first = int(lines.min()) - BESIDE
    rows = np.arange(first, lines.max() + BESIDE + 1)
    columns = np.arange(frame.first_column, frame.last_column + 1)
    seen_YX = channel_of(sample(picture_hwC, place.rows(rows), place.columns(columns)), frame.channel)
    due_YX = blurred_lines(bar, seen_YX, first, sigma)
    even_YX = blurred_lines(bar, np.full((len(rows), 1), 128.0), first, sigma)
    covered, contrasts, telling = False, [], []
    # Above and below on their own: a cover over one side must not hide behind the other.
    for pairs in _line_pairs(bar):
        over, under = (np.array(side) - first for side in zip(*pairs, strict=True))
        seen_PX, due_PX = _smooth(seen_YX[over] - seen_YX[under]), _smooth(due_YX[over] - due_YX[under])
        power_X = np.square(due_PX).sum(axis=0)
        agreement_X = (seen_PX * due_PX).sum(axis=0) / np.maximum(power_X, 1.0)
        # What a flat cover would hide; far below that, the scene itself levels the lines.
        even = float(np.linalg.norm(even_YX[over] - even_YX[under]))
        telling_X = np.sqrt(power_X) >= max(MIN_DUE_CONTRAST, MIN_DUE_SHARE * even)
        missing_X = telling_X & (agreement_X < MIN_AGREEMENT)
        covered |= missing_X.mean() > MAX_COVERED_SHARE or _longest_run(missing_X) > MAX_COVERED_RUN
        telling.append(float(telling_X.mean()))
        contrasts.append(float(np.median(seen_PX.mean(axis=0))))
    return bool(covered) or max(telling) < MIN_TELLING_SHARE, max(contrasts)


def _line_pairs(bar: BarProfile) -> list[list[tuple[int, int]]]:
    """(light row, dark row) pairs of neighbouring lines above the bar, and below it."""
    groups = []
    for side in (
        [line for line in bar.frame.rows if line.at < bar.box.top],
        [line for line in bar.frame.rows if line.at >= bar.box.bottom],
    ):
        light = [line.at for line in side if line.shade == "light"]
        dark = [line.at for line in side if line.shade == "dark"]
        pairs = {(at, min(dark, key=lambda other: abs(other - at))) for at in light}
        pairs |= {(min(light, key=lambda other: abs(other - at)), at) for at in dark}
        groups.append(sorted(pairs))
    return groups


def _smooth(values_PX: NDArray[np.generic]) -> NDArray[np.float64]:
    """Mean over three columns."""
    padded = np.concatenate([values_PX[:, :1], values_PX, values_PX[:, -1:]], axis=1)
    mean: NDArray[np.float64] = (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3.0
    return mean


def _longest_run(flags_X: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags_X.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0


def _inner(picture_hwC: Picture, place: Placement, bar: BarProfile) -> Floats:
    """The bar's pixels, columns from the anchored side outwards."""
    rows = np.arange(bar.box.top, bar.box.bottom)
    columns = np.arange(bar.box.left, bar.box.right)
    inner_YXC = sample(picture_hwC, place.rows(rows), place.columns(columns))
    return inner_YXC[:, ::-1] if bar.fills_from == "right" else inner_YXC


@dataclass(frozen=True)
class _Scene:
    """The scene beside a bar, column by column, and where no text lies over it."""

    mean_XC: Floats
    free_X: NDArray[np.bool_]
    must_match: bool


def _scene(picture_hwC: Picture, place: Placement, bar: BarProfile) -> _Scene | None:
    """None where the profile names no rows."""
    if bar.scene_rows is None:
        return None
    rows = np.arange(*bar.scene_rows)
    columns = np.arange(bar.box.left, bar.box.right)
    mean_XC = sample(picture_hwC, place.rows(rows), place.columns(columns)).mean(axis=0)
    free_X = np.zeros(bar.box.width, np.bool_)
    for first, past in bar.scene_free:
        free_X[max(first - bar.box.left, 0) : max(past - bar.box.left, 0)] = True
    outwards = slice(None, None, -1 if bar.fills_from == "right" else 1)
    return _Scene(mean_XC[outwards], free_X[outwards], bar.scene_test == "match")


@dataclass(frozen=True)
class _Cut:
    """Solid columns, then draining ones up to `end`; likelihood, colour of the solid part, columns that fit either way."""

    solid: int
    end: int
    gain: float
    colour_C: Floats
    unclear: int


def _read_columns(
    inner_YXC: Floats, bar: BarProfile, sigma: float, scene: _Scene | None, contrast: float
) -> BarReading:
    mean_XC = inner_YXC[[row - bar.box.top for row in middle_rows(bar)]].mean(axis=0)
    solid = [blurred_colour(bar, colour, sigma) for colour in bar.solid]
    drain_C = None if bar.drain is None else blurred_colour(bar, bar.drain, sigma)
    drain_X = None if drain_C is None else _likelihood(mean_XC, drain_C, COLOUR_DISTANCE)
    cut = max((_cut(mean_XC, colour_C, drain_X, COLOUR_DISTANCE) for colour_C in solid), key=lambda cut: cut.gain)
    if cut.solid >= _FEW_COLUMNS:
        learned_C = np.median(mean_XC[1 : cut.solid - 1], axis=0).astype(np.float32)
        if float(np.linalg.norm(learned_C - cut.colour_C)) <= LARGEST_COLOUR_SHIFT:
            noise = float(np.median(np.linalg.norm(mean_XC[1 : cut.solid - 1] - learned_C, axis=1)))
            cut = _cut(mean_XC, learned_C, drain_X, float(np.clip(32.0 + 3.0 * noise, *FITTED_DISTANCE)))
    problem = "end unclear" if cut.unclear > MAX_UNCLEAR else _problem(inner_YXC, mean_XC, cut, solid)
    problem = problem or _scene_problem(mean_XC, cut, scene)
    if problem:
        return unreadable(problem)
    per_column = bar.points / bar.box.width
    edge = end = _edge(mean_XC, cut.solid, 0, cut.colour_C)
    if drain_C is not None and cut.end > cut.solid:
        end = max(edge, _edge(mean_XC, cut.end, cut.solid, drain_C))
    confidence = min(1.0, contrast / 60.0) * _fit(mean_XC, cut)
    return BarReading(edge * per_column, (end - edge) * per_column, float(confidence))


def _likelihood(mean_XC: Floats, colour_C: Floats, distance: float) -> NDArray[np.float64]:
    """Log-likelihood ratio per column: of the colour against anything else; bounded on both sides."""
    squared_X = np.square(mean_XC - colour_C).sum(axis=1, dtype=np.float64)
    return np.maximum(_GAIN * (1.0 - squared_X / distance**2), -_LOSS)


def _cut(mean_XC: Floats, colour_C: Floats, drain_likelihood_X: NDArray[np.float64] | None, distance: float) -> _Cut:
    """Most likely number of solid columns and end of the draining part."""
    likelihood_X = _likelihood(mean_XC, colour_C, distance)
    solid_X = np.concatenate([[0.0], np.cumsum(likelihood_X)])
    if drain_likelihood_X is None:
        end = int(np.argmax(solid_X))
        return _Cut(end, end, float(solid_X[end]), colour_C, _unclear(likelihood_X, end))
    drain_X = np.concatenate([[0.0], np.cumsum(drain_likelihood_X)])
    # For every end: the best solid length up to it is a running maximum of the difference.
    lead_X = solid_X - drain_X
    total_X = drain_X + np.maximum.accumulate(lead_X)
    end = int(np.argmax(total_X))
    solid = int(np.argmax(lead_X[: end + 1]))
    unclear = _unclear(np.maximum(likelihood_X, drain_likelihood_X), end)
    return _Cut(solid, end, float(total_X[end]), colour_C, unclear)


def _unclear(likelihood_X: NDArray[np.float64], end: int) -> int:
    """Columns around the end that could as well lie on its other side."""
    around_X = likelihood_X[max(0, end - _UNCLEAR_REACH) : end + _UNCLEAR_REACH]
    return int((np.abs(around_X) < UNCLEAR_GAIN).sum())


def _fit(mean_XC: Floats, cut: _Cut) -> float:
    """How near the solid part is to its colour, 0..1; 1 for an empty bar."""
    if cut.solid < 3:
        return 1.0
    away = float(np.linalg.norm(mean_XC[1 : cut.solid - 1] - cut.colour_C, axis=1).mean())
    return float(np.clip(1.0 - away / COLOUR_DISTANCE, 0.1, 1.0))


def _edge(mean_XC: Floats, cut: int, start: int, before_C: Floats) -> float:
    """The cut near column `cut`, to a fraction of a column: where the colour is half way between both sides.

    Args:
        mean_XC: the bar's columns.
        cut: most likely number of columns before the cut.
        start: first column that belongs to the part before it.
        before_C: that part's colour.
    """
    columns = len(mean_XC)
    if cut <= start or cut >= columns - 1:
        return float(cut)
    after_C = np.median(mean_XC[min(cut + 2, columns - 1) : cut + 2 + _EDGE_REACH], axis=0)
    step_C = before_C - after_C
    told_C = np.abs(step_C) >= _MIN_EDGE_STEP
    if float(np.linalg.norm(step_C)) < _MIN_EDGE_CONTRAST or not told_C.any():
        return float(cut)
    first, past = max(start, cut - _EDGE_REACH), min(columns, cut + _EDGE_REACH)
    # Channel by channel: a scene that is as bright as the fill but of another hue is no part of it.
    way_XC = (mean_XC[first:past, told_C] - after_C[told_C]) / step_C[told_C]
    over_X = np.clip(way_XC, 0.0, 1.0).mean(axis=1) - 0.5
    k = int(np.argmax(np.concatenate([[0.0], np.cumsum(over_X)])))
    if not 0 < k < len(over_X):
        return float(first + k)
    inside, outside = float(over_X[k - 1]), float(over_X[k])
    # Column centres lie half a column inside and outside of a sharp cut.
    return first + k - 0.5 + inside / max(inside - outside, 1e-6)


def _problem(inner_YXC: Floats, mean_XC: Floats, cut: _Cut, solid: list[Floats]) -> str:
    """Why this is no bar: holes in the solid part, islands past its end, rows that differ."""
    near_X = _near(mean_XC, cut.colour_C, COLOUR_DISTANCE)
    if cut.solid > 2 and _longest_run(~near_X[1 : cut.solid - 1]) > MAX_HOLE:
        return "solid part covered"
    for colour_C in (cut.colour_C, *solid):
        if _longest_run(_near(mean_XC[cut.end + 2 :], colour_C, FITTED_DISTANCE[0])) > MAX_ISLAND:
            return "solid colour past the end"
    if cut.solid >= _FEW_COLUMNS and len(inner_YXC) > 2:
        rows_YC = inner_YXC[:, 1 : cut.solid - 1].mean(axis=1)
        if float(np.linalg.norm(rows_YC - cut.colour_C, axis=1).max()) > 2.2 * COLOUR_DISTANCE:
            return "solid part covered"
    return ""


def _near(colours_XC: Floats, colour_C: Floats, distance: float) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = np.square(colours_XC - colour_C).sum(axis=1) <= distance**2
    return near


def _scene_problem(mean_XC: Floats, cut: _Cut, scene: _Scene | None) -> str:
    """Whether the empty part is something else than the scene behind it: a flat patch, noise, another picture."""
    empty_XC = mean_XC[cut.end + 3 :]
    if len(empty_XC) >= _MIN_SCENE_COLUMNS:
        steps_X = np.abs(np.diff(empty_XC, axis=0)).sum(axis=1)
        if float(np.median(steps_X)) > NOISE_STEP:
            return "empty part is noise"
    if scene is None:
        return ""
    columns = np.flatnonzero(scene.free_X)
    columns = columns[columns >= cut.end + 3]
    if len(columns) < _MIN_SCENE_COLUMNS:
        return ""
    inside_X, beside_X = mean_XC[columns].mean(axis=1), scene.mean_XC[columns].mean(axis=1)
    flat, lively = float(inside_X.std()), float(beside_X.std())
    if flat < FLAT_LEVELS and lively > 4 * FLAT_LEVELS:
        return "empty part is flat"
    if not scene.must_match:
        return ""
    # Slanted things in the scene pass the bar a few columns aside.
    around_XN = np.clip(columns[:, None] + np.arange(-SCENE_REACH, SCENE_REACH + 1, 2), 0, len(mean_XC) - 1)
    apart_XN = np.square(mean_XC[columns][:, None] - scene.mean_XC[around_XN]).sum(axis=2)
    near = float((apart_XN.min(axis=1) <= SCENE_DISTANCE**2).mean())
    together = float(np.corrcoef(inside_X, beside_X)[0, 1]) if min(flat, lively) > 0.0 else 0.0
    return "" if near >= MIN_SCENE_SHARE or together >= MIN_SCENE_CORRELATION else "empty part does not show the scene"
