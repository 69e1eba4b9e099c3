"""The HUD reader: what a frame of the real game says about HP, meters and clock, or that it cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.errors import InputError
from stateplay_rl.evaluation.bars import BarColours, read_bar
from stateplay_rl.evaluation.blur import estimate_blur
from stateplay_rl.evaluation.digits import read_timer
from stateplay_rl.evaluation.placement import (
    SEARCH_PIXELS,
    SEARCH_SQUEEZE,
    Picture,
    Placement,
    fit_columns,
    nominal_placements,
    row_shift,
)
from stateplay_rl.evaluation.profile import TIMER, HudFacts, HudProfile, Role
from stateplay_rl.evaluation.strip import BarGeometry, BarStrip, cut_strip

HUD_READER_VERSION = 2
MIN_ROW_CONTRAST = 9.0
"""Levels by which the light frame lines must exceed the dark ones for a HUD to be there at all."""
MIN_ENDS_SHARE = 0.7
"""Share of the frames' ends that must show."""
_MIN_SIDE = 48
_NEAR_PIXELS = 1.0
"""How far the HUD may move from one frame to the next before it is looked for anew, native pixels."""


@dataclass(frozen=True)
class ElementReading:
    """One number of the HUD as a range: the solid part, and solid plus draining part. Points (or seconds).

    Args:
        low, high: the range; None if unreadable. They differ only while something drains.
        confidence: 0..1.
        reason: empty, or why it is unreadable.
    """

    low: float | None
    high: float | None
    confidence: float
    reason: str = ""

    @property
    def readable(self) -> bool:
        return self.low is not None

    def holds(self, true: float, tolerance: float) -> bool:
        """Whether a true value lies in the range, give or take the tolerance; False if unreadable."""
        return self.low is not None and self.high is not None and self.low - tolerance <= true <= self.high + tolerance


@dataclass(frozen=True)
class HudReading:
    """What a frame shows, by element (`p1_hp`, …, `timer`). `place` is None where no HUD was found."""

    elements: dict[str, ElementReading]
    place: Placement | None

    @property
    def readable(self) -> bool:
        """Whether every element could be read."""
        return all(element.readable for element in self.elements.values())

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Names of the elements that could not be read."""
        return tuple(name for name, element in self.elements.items() if not element.readable)


class HudReader(Protocol):
    """Reads game state off pixels. The real game's reader follows a profile; arena has its own."""

    game: str
    """Name of the game; stands in every record."""
    facts: HudFacts
    """Its elements, their tolerances, and the rules of the game."""

    def read(self, frame_hwC: Picture) -> HudReading:
        """Read one frame, uint8 RGB [h, w, 3]."""

    def read_video(self, frames_ThwC: NDArray[np.uint8]) -> list[HudReading]:
        """Read every frame of a video, uint8 RGB [T, h, w, 3]."""


class ProfileReader:
    """The reader that follows a profile: any size and crop that `placement` knows."""

    def __init__(self, profile: HudProfile) -> None:
        self.profile = profile
        self.game = profile.game
        self.facts = profile.facts
        self._aligning = [bar for bar in profile.bars.values() if bar.frame.ends]
        self._ends = sum(len(bar.frame.ends) for bar in self._aligning)
        self._geometry = {name: BarGeometry(bar) for name, bar in profile.bars.items()}
        self._colours: dict[tuple[str, float], BarColours] = {}

    def read(self, frame_hwC: Picture, near: Placement | None = None) -> HudReading:
        """Read one frame.

        Args:
            frame_hwC: uint8 RGB [h, w, 3], any size.
            near: where the HUD lay in the frame before; it is looked for there first.

        Raises:
            InputError: not a colour picture.
        """
        check_picture(frame_hwC)
        if min(frame_hwC.shape[:2]) < _MIN_SIDE:
            return self._nothing("picture too small")
        if near is not None:
            place = self._align(frame_hwC, near, _NEAR_PIXELS, 0.0)
            if place is not None and abs(place.left - near.left) + abs(place.top - near.top) < _NEAR_PIXELS:
                return self._read_at(frame_hwC, place)
        height, width = frame_hwC.shape[:2]
        for nominal in nominal_placements(height, width, self.profile):
            place = self._align(frame_hwC, nominal, SEARCH_PIXELS, SEARCH_SQUEEZE)
            if place is not None:
                return self._read_at(frame_hwC, place)
        return self._nothing("no HUD found")

    def read_video(self, frames_ThwC: NDArray[np.uint8]) -> list[HudReading]:
        """Read every frame: a generated HUD may move or vanish in any of them."""
        readings: list[HudReading] = []
        near: Placement | None = None
        for frame_hwC in frames_ThwC:
            reading = self.read(frame_hwC, near)
            # Only a good reading vouches for its place.
            near = reading.place if reading.readable else None
            readings.append(reading)
        return readings

    def _align(self, frame_hwC: Picture, start: Placement, reach: float, squeeze: float) -> Placement | None:
        shift, contrast = row_shift(frame_hwC, start, self._aligning, reach)
        if contrast < MIN_ROW_CONTRAST:
            return None
        place, ends = fit_columns(frame_hwC, start.shifted(0.0, shift), self._aligning, reach, squeeze)
        return place if ends >= MIN_ENDS_SHARE * self._ends else None

    def _read_at(self, frame_hwC: Picture, place: Placement) -> HudReading:
        strips = {name: self._strip(frame_hwC, place, name) for name in self.profile.bars}
        sure = [strip for strip in strips.values() if strip is not None and strip.geometry.bar.frame.ends]
        sigma = estimate_blur(sure)
        elements: dict[str, ElementReading] = {name: self._bar(strip, sigma, name) for name, strip in strips.items()}
        # Without one good bar among those that the picture was aligned by, the place itself is a guess.
        if not any(elements[name].readable for name, bar in self.profile.bars.items() if bar.frame.ends):
            return self._nothing("no bar found where the HUD should be")
        if self.profile.timer is not None:
            clock = read_timer(frame_hwC, place, self.profile.timer)
            value = None if clock.value is None else float(clock.value)
            elements[TIMER] = ElementReading(value, value, round(clock.confidence, 3), clock.reason)
        # A pattern may pass for empty bars; a HUD without any fill and without a clock is none.
        if not any(element.high for element in elements.values()):
            return self._nothing("nothing but empty bars")
        return HudReading({name: elements[name] for name in self.profile.elements}, place)

    def _strip(self, frame_hwC: Picture, place: Placement, name: Role) -> BarStrip | None:
        geometry = self._geometry[name]
        if not geometry.bar.frame.ends:
            # Far from the bars that the picture was aligned by: its rows are found anew.
            shift, _ = row_shift(frame_hwC, place, [geometry.bar])
            place = place.shifted(0.0, shift)
        return cut_strip(frame_hwC, place, geometry)

    def _bar(self, strip: BarStrip | None, sigma: float, name: Role) -> ElementReading:
        if (name, sigma) not in self._colours:
            self._colours[name, sigma] = BarColours.under(self._geometry[name], sigma)
        seen = read_bar(strip, sigma, self._colours[name, sigma])
        if not seen.readable:
            return ElementReading(None, None, 0.0, seen.reason)
        return ElementReading(round(seen.solid, 2), round(seen.solid + seen.drain, 2), round(seen.confidence, 3))

    def _nothing(self, reason: str) -> HudReading:
        return HudReading({name: ElementReading(None, None, 0.0, reason) for name in self.profile.elements}, None)


def check_picture(frame_hwC: NDArray[np.uint8]) -> None:
    """Refuse what is no picture.

    Raises:
        InputError: another type or shape.
    """
    if frame_hwC.dtype != np.uint8 or frame_hwC.ndim != 3 or frame_hwC.shape[-1] != 3:
        raise InputError(f"not an RGB picture: {frame_hwC.dtype} {frame_hwC.shape}, expected uint8 [h, w, 3]")


def readable_share(readings: Sequence[HudReading]) -> float:
    """Coverage: share of (frame, element) that could be read, 0..1; 0 without frames."""
    seen = [element.readable for reading in readings for element in reading.elements.values()]
    return sum(seen) / len(seen) if seen else 0.0
