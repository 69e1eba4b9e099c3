"""What a video shows over time: ranges of every HUD element, frame by frame, NaN where unreadable. T frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.errors import InputError
from stateplay_rl.evaluation.hud import HudReading
from stateplay_rl.evaluation.profile import HudFacts

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ElementSeries:
    """One element over time: float64 [T] each, NaN where unreadable. `high - low` is what drains."""

    low_T: Floats
    high_T: Floats

    @property
    def readable(self) -> NDArray[np.bool_]:
        """Frames that could be read: bool [T]."""
        return ~np.isnan(self.low_T)

    @property
    def coverage(self) -> float:
        """Share of frames that could be read, 0..1."""
        return float(self.readable.mean()) if len(self.low_T) else 0.0


@dataclass(frozen=True)
class HudSeries:
    """All elements of a video over time."""

    facts: HudFacts
    elements: Mapping[str, ElementSeries]

    @property
    def frames(self) -> int:
        return len(next(iter(self.elements.values())).low_T)

    @property
    def coverage(self) -> float:
        """Share of (frame, element) that could be read, 0..1."""
        return float(np.mean([series.coverage for series in self.elements.values()]))


def series_of(readings: Sequence[HudReading], facts: HudFacts) -> HudSeries:
    """Readings in frame order as series.

    Raises:
        InputError: there is no frame.
    """
    if not readings:
        raise InputError("a video without frames cannot be followed")
    elements = {}
    for name in facts.elements:
        seen = [reading.elements[name] for reading in readings]
        low_T = np.array([np.nan if e.low is None else e.low for e in seen], np.float64)
        high_T = np.array([np.nan if e.high is None else e.high for e in seen], np.float64)
        elements[name] = ElementSeries(low_T, high_T)
    return HudSeries(facts, elements)


def series_of_states(states: Mapping[str, NDArray[np.generic]], facts: HudFacts, frames: int) -> HudSeries | None:
    """True state columns as series, cut to `frames`; None if a column of the HUD is missing or shorter.

    Args:
        states: column name to one value per frame.
        facts: says which columns the HUD shows.
        frames: length of the video that they are compared with.
    """
    elements = {}
    for name in facts.elements:
        if name not in states or len(states[name]) < frames:
            return None
        values_T = np.asarray(states[name][:frames], np.float64)
        elements[name] = ElementSeries(values_T, values_T)
    return HudSeries(facts, elements)
