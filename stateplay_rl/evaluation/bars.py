"""One bar of a HUD: its length, the draining part, or why it cannot be read.

A bar is read as a sequence of columns from its anchored side: first solid, then perhaps draining, then empty. The
cut points are those of the largest likelihood; the place of a cut between two columns comes from the mixture of the
colours at its sides. Shapes: Y X native rows and columns of a bar (X from the anchored side outwards), C = 3 colours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.evaluation.bar_frame import frame_problem, longest_run, rims_follow, scene_problem
from stateplay_rl.evaluation.blur import blurred_colour
from stateplay_rl.evaluation.placement import Floats
from stateplay_rl.evaluation.strip import BarGeometry, BarStrip, middle

# RGB distance (0..441) at which a column is as likely of a colour as not; blurs and codecs stay far below.
COLOUR_DISTANCE = 80.0
FITTED_DISTANCE = (44.0, 80.0)
"""The same, once colour and noise were learned from the bar itself: smallest and largest."""
LARGEST_COLOUR_SHIFT = 90.0
"""A learned colour may be this far from the profile's."""
_GAIN = 2.0
_LOSS = 6.0
_FEW_COLUMNS = 6
# Columns of another colour inside the solid part; solid-coloured columns past its end.
MAX_HOLE = 1
MAX_ISLAND = 7
# A column below this log-likelihood (of at most 2) either way may lie on either side; so many are too many.
UNCLEAR_GAIN = 0.7
MAX_UNCLEAR = 4
_UNCLEAR_REACH = 12
# Where the colour is half way: least difference of both sides, and reach in columns.
_MIN_EDGE_CONTRAST = 50.0
_EDGE_REACH = 6
_MIN_EDGE_STEP = 25.0


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


@dataclass(frozen=True)
class BarColours:
    """A bar's colours under one blur: its solid ones, and the draining one or None."""

    solid: tuple[Floats, ...]
    drain_C: Floats | None

    @classmethod
    def under(cls, geometry: BarGeometry, sigma: float) -> BarColours:
        """The profile's colours as the blur mixes them with the lines around the bar."""
        bar = geometry.bar
        solid = tuple(blurred_colour(geometry, colour, sigma) for colour in bar.solid)
        return cls(solid, None if bar.drain is None else blurred_colour(geometry, bar.drain, sigma))


def read_bar(strip: BarStrip | None, sigma: float, colours: BarColours) -> BarReading:
    """Read one bar.

    Args:
        strip: its pixels; None if it lies outside the picture.
        sigma: the picture's blur, native pixels.
        colours: the bar's colours under that blur.
    """
    if strip is None:
        return unreadable("outside the picture")
    problem, contrast = frame_problem(strip, sigma)
    if problem:
        return unreadable(problem)
    if not rims_follow(strip, sigma):
        return unreadable("fill covered")
    geometry = strip.geometry
    mean_XC = strip.pixels_YXC[geometry.middle].mean(axis=0)
    cut = _best_cut(mean_XC, colours)
    problem = "end unclear" if cut.unclear > MAX_UNCLEAR else _fill_problem(strip, mean_XC, cut, colours)
    problem = problem or scene_problem(strip, mean_XC, cut.end)
    if problem:
        return unreadable(problem)
    edge = end = _edge(mean_XC, cut.solid, 0, cut.colour_C)
    if colours.drain_C is not None and cut.end > cut.solid:
        end = max(edge, _edge(mean_XC, cut.end, cut.solid, colours.drain_C))
    per_column = geometry.bar.points / geometry.bar.box.width
    confidence = min(1.0, contrast / 60.0) * _fit(mean_XC, cut)
    return BarReading(edge * per_column, (end - edge) * per_column, float(confidence))


@dataclass(frozen=True)
class _Cut:
    """Solid columns, draining ones up to `end`, likelihood, colour of the solid part, columns that fit either way."""

    solid: int
    end: int
    gain: float
    colour_C: Floats
    unclear: int


def _best_cut(mean_XC: Floats, colours: BarColours) -> _Cut:
    """The cut for the profile's colours, then for the colour and noise that the solid part itself shows."""
    drain_X = None if colours.drain_C is None else _likelihood(mean_XC, colours.drain_C, COLOUR_DISTANCE)
    cuts = (_cut(mean_XC, colour_C, drain_X, COLOUR_DISTANCE) for colour_C in colours.solid)
    cut = max(cuts, key=lambda cut: cut.gain)
    if cut.solid < _FEW_COLUMNS:
        return cut
    solid_XC = mean_XC[1 : cut.solid - 1]
    learned_C = middle(solid_XC)
    if float(np.linalg.norm(learned_C - cut.colour_C)) > LARGEST_COLOUR_SHIFT:
        return cut
    noise = float(middle(np.linalg.norm(solid_XC - learned_C, axis=1)))
    return _cut(mean_XC, learned_C, drain_X, float(np.clip(32.0 + 3.0 * noise, *FITTED_DISTANCE)))


def _likelihood(mean_XC: Floats, colour_C: Floats, distance: float) -> NDArray[np.float64]:
    """Log-likelihood ratio per column: of the colour against anything else; bounded on both sides."""
    squared_X = np.square(mean_XC - colour_C).sum(axis=1, dtype=np.float64)
    ratio_X: NDArray[np.float64] = np.maximum(_GAIN * (1.0 - squared_X / distance**2), -_LOSS)
    return ratio_X


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
    after_C = middle(mean_XC[min(cut + 2, columns - 1) : cut + 2 + _EDGE_REACH])
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


def _fill_problem(strip: BarStrip, mean_XC: Floats, cut: _Cut, colours: BarColours) -> str:
    """Why this is no bar: holes in the solid part, islands past its end, rows that differ."""
    near_X = _near(mean_XC, cut.colour_C, COLOUR_DISTANCE)
    if cut.solid > 2 and longest_run(~near_X[1 : cut.solid - 1]) > MAX_HOLE:
        return "solid part covered"
    past_XC = mean_XC[cut.end + 2 :]
    for colour_C in (cut.colour_C, *colours.solid):
        if longest_run(_near(past_XC, colour_C, FITTED_DISTANCE[0])) > MAX_ISLAND:
            return "solid colour past the end"
    inner_YXC = strip.pixels_YXC[strip.geometry.inner]
    if cut.solid >= _FEW_COLUMNS and len(inner_YXC) > 2:
        rows_YC = inner_YXC[:, 1 : cut.solid - 1].mean(axis=1)
        if float(np.linalg.norm(rows_YC - cut.colour_C, axis=1).max()) > 2.2 * COLOUR_DISTANCE:
            return "solid part covered"
    return ""


def _near(colours_XC: Floats, colour_C: Floats, distance: float) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = np.square(colours_XC - colour_C).sum(axis=1) <= distance**2
    return near
