"""How long a video stays right: its quarters, each judged on its own, so that a good start cannot hide a bad end.

World models drift: the first frame is given, and errors add up. A judge gives one score a video and cannot say when it
went wrong; a referee that reads every frame can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stateplay_rl.evaluation.agreement import StateAgreement
from stateplay_rl.evaluation.follow import MIN_COVERAGE, FollowReport
from stateplay_rl.evaluation.intervals import Bounds, bounds_of, points_of
from stateplay_rl.evaluation.series import HudSeries

HORIZONS = 4
"""Parts of equal length that a video is cut into."""


@dataclass(frozen=True)
class HorizonPart:
    """One part of a video.

    Args:
        start, end: its first frame and the one past its last.
        parts: what counts for its points, as in the whole video's verdict.
        tracked: (frame, element) values that agree with the truth; empty where there is none. Reported, not scored:
            a right video may go another way.
        coverage: share of (frame, element) read, 0..1.
    """

    start: int
    end: int
    parts: Mapping[str, Bounds]
    tracked: Bounds
    coverage: float

    @property
    def points(self) -> tuple[float, float | None]:
        """0..100: with unreadable as wrong, and without it."""
        return points_of(self.parts.values())


def spans_of(frames: int, count: int = HORIZONS) -> tuple[tuple[int, int], ...]:
    """First frame and the one past the last of every part; fewer parts where there are fewer frames than `count`."""
    edges = [round(k * frames / count) for k in range(count + 1)]
    return tuple((start, end) for start, end in pairwise(edges) if end > start)


def horizon_of(series: HudSeries, report: FollowReport, agreement: StateAgreement | None) -> tuple[HorizonPart, ...]:
    """A followed video, part by part.

    Args:
        series: what it shows.
        report: `follow(series)`.
        agreement: with the true states; None where there are none.
    """
    found = []
    for start, end in spans_of(series.frames):
        read = {name: float(element.readable[start:end].mean()) for name, element in series.elements.items()}
        broken = {v.element for v in report.violations if start <= v.frame < end}
        lawful = [None if share < MIN_COVERAGE else name not in broken for name, share in read.items()]
        parts, tracked = {"rules": bounds_of(lawful)}, Bounds()
        if agreement is not None:
            moments = [moment for match in agreement.events.values() for moment in match.moments]
            parts["events"] = bounds_of(right for frame, right in moments if start <= frame < end)
            tracked = bounds_of(right for values in agreement.frames.values() for right in values[start:end])
        found.append(HorizonPart(start, end, parts, tracked, sum(read.values()) / len(read)))
    return tuple(found)


def mean_horizon(members: Sequence[HorizonPart]) -> dict[str, object]:
    """One part over several videos, as plain JSON values.

    Args:
        members: the same part (first quarter, ...) of each video; at least one.
    """
    points = [member.points for member in members]
    highs = [high for _, high in points if high is not None]
    names = sorted({name for member in members for name in member.parts})
    return {
        "videos": len(members),
        "frames": [min(m.start for m in members), max(m.end for m in members)],
        "low": sum(low for low, _ in points) / len(points),
        "high": sum(highs) / len(highs) if highs else None,
        "coverage": sum(member.coverage for member in members) / len(members),
        "tracked": _sum(member.tracked for member in members).to_json(),
        "parts": {name: _sum(m.parts[name] for m in members if name in m.parts).to_json() for name in names},
    }


def _sum(members: Iterable[Bounds]) -> Bounds:
    return sum(members, Bounds())
