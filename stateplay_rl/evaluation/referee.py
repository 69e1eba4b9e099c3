"""A referee judges a video by what its HUD shows: never a training reward, always with what it could not read.

Points (0..100) of one video are the mean of up to three parts: agreement of the first frame with the true initial
state, elements that break no rule of the game, and true events found. The lower number counts what could not be read as
wrong, the upper one leaves it out. Arena's referee (`arena/hud_referee.py`) answers through the same protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.evaluation.agreement import StateAgreement, compare_states
from stateplay_rl.evaluation.follow import FollowReport, follow
from stateplay_rl.evaluation.horizon import HorizonPart, horizon_of, mean_horizon
from stateplay_rl.evaluation.hud import HUD_READER_VERSION, HudReader
from stateplay_rl.evaluation.intervals import Bounds, bounds_of, points_of
from stateplay_rl.evaluation.series import HudSeries, series_of, series_of_states

HUD_REFEREE_VERSION = 1


@dataclass(frozen=True)
class RefereeCase:
    """What a video was asked to be.

    Args:
        first_frame_hwC: uint8 RGB.
        held_RK: held buttons [rows, 11].
        prompt: the condition's text.
        states: true state columns [rows]; empty where the source has none.
    """

    first_frame_hwC: NDArray[np.uint8]
    held_RK: NDArray[np.generic]
    prompt: str
    states: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)


@dataclass(frozen=True)
class RefereeVerdict:
    """A video's points.

    Args:
        low: 0..100, unreadable counted wrong.
        high: 0..100, unreadable left out; None if nothing could be read.
        coverage: share of (frame, element) read, 0..1.
        parts: bounds by part.
        details: plain JSON values for people and tables.
        horizon: the video's quarters in order, judged one by one; empty where the referee does not look at them.
    """

    low: float
    high: float | None
    coverage: float
    parts: Mapping[str, Bounds]
    details: Mapping[str, object] = field(default_factory=dict)
    horizon: tuple[HorizonPart, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            "low": self.low,
            "high": self.high,
            "coverage": self.coverage,
            "parts": {name: bounds.to_json() for name, bounds in self.parts.items()},
            "horizon": [mean_horizon([part]) for part in self.horizon],
            **self.details,
        }


class VideoReferee(Protocol):
    """Judges one video at a time; the same video always gets the same verdict."""

    name: str
    """Stands in every record: which referee, which game, which version."""

    def judge(self, frames_ThwC: NDArray[np.uint8], case: RefereeCase) -> RefereeVerdict:
        """Judge a video, uint8 RGB [T, h, w, 3]."""


class HudReferee:
    """The referee that follows a HUD; for any game with a reader."""

    def __init__(self, reader: HudReader) -> None:
        self.reader = reader
        self.name = f"hud-{reader.game}-v{HUD_READER_VERSION}.{HUD_REFEREE_VERSION}"

    def judge(self, frames_ThwC: NDArray[np.uint8], case: RefereeCase) -> RefereeVerdict:
        """Judge a video.

        Raises:
            InputError: no frame, or not RGB.
        """
        series = series_of(self.reader.read_video(frames_ThwC), self.reader.facts)
        report = follow(series)
        truth = series_of_states(case.states, self.reader.facts, series.frames)
        agreement = None if truth is None else compare_states(series, truth, report)
        return verdict_of(series, report, agreement)


def verdict_of(series: HudSeries, report: FollowReport, agreement: StateAgreement | None) -> RefereeVerdict:
    """Points from what was followed, with the truth or (where it is unknown) without."""
    parts = {"rules": bounds_of(report.lawful(name) for name in series.elements)}
    if agreement is not None:
        parts["initial"] = agreement.initial_bounds
        parts["events"] = agreement.event_bounds
    low, high = points_of(parts.values())
    details: dict[str, object] = {
        "violations": [
            {"kind": v.kind, "element": v.element, "frame": v.frame, "before": v.before, "after": v.after}
            for v in report.violations
        ],
        "events": [{"kind": e.kind, "player": e.player, "frame": e.frame, "points": e.points} for e in report.events],
    }
    if agreement is not None:
        details["agreement"] = agreement.to_json()
    return RefereeVerdict(low, high, series.coverage, parts, details, horizon_of(series, report, agreement))


def mean_of(verdicts: Sequence[RefereeVerdict]) -> dict[str, float | int | None]:
    """Means over videos: `low`, `high`, `coverage`, and how many there are."""
    highs = [verdict.high for verdict in verdicts if verdict.high is not None]
    return {
        "videos": len(verdicts),
        "low": sum(v.low for v in verdicts) / len(verdicts) if verdicts else None,
        "high": sum(highs) / len(highs) if highs else None,
        "coverage": sum(v.coverage for v in verdicts) / len(verdicts) if verdicts else None,
    }
