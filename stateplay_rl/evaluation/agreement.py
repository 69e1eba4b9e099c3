"""A video's HUD against the true state columns of the same condition, as far as determinism allows.

The opponent is not bound by the player's buttons: only the first frame must agree outright. Events are matched in time
with a tolerance, because the game's memory runs ahead of (or, after a KO, behind) the display.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from stateplay_rl.evaluation.follow import MIN_COVERAGE, FollowReport, HudEvent, follow
from stateplay_rl.evaluation.intervals import Bounds, bounds_of
from stateplay_rl.evaluation.profile import HudFacts
from stateplay_rl.evaluation.series import HudSeries

EVENT_KINDS = ("hit", "special", "ko")
"""Events that are compared with the truth; `spend` depends on what the reader calls special."""
SMALL_HIT_POINTS = 3.0
"""True hits below this are within the reading's tolerance: not asked for, and not held against a video."""


@dataclass(frozen=True)
class EventMatch:
    """True events and those of the video: in bounds (`found` right, `missed` wrong or unreadable), plus `invented`.

    `moments` are the same outcomes with their frames: of a true event its own, of an invented one the video's.
    """

    found: int
    missed: int
    unreadable: int
    invented: int
    delay_frames: float | None
    moments: tuple[tuple[int, bool | None], ...] = ()

    @property
    def bounds(self) -> Bounds:
        """Right are the found ones, wrong the missed and the invented ones."""
        return Bounds(self.found, self.missed + self.invented, self.unreadable)


@dataclass(frozen=True)
class StateAgreement:
    """A video against the truth.

    Args:
        initial: by element, whether the true first value lies in the first frame's range; None if unreadable.
        frames: by element, for each frame: whether the range meets the truth within the display's delay.
        events: by kind.
    """

    initial: dict[str, bool | None]
    frames: dict[str, tuple[bool | None, ...]]
    events: dict[str, EventMatch]

    @property
    def tracked(self) -> dict[str, Bounds]:
        """`frames`, counted."""
        return {name: bounds_of(outcomes) for name, outcomes in self.frames.items()}

    @property
    def initial_bounds(self) -> Bounds:
        return bounds_of(self.initial.values())

    @property
    def event_bounds(self) -> Bounds:
        return sum((match.bounds for match in self.events.values()), Bounds())

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            "initial": dict(self.initial),
            "tracked": {name: bounds.to_json() for name, bounds in self.tracked.items()},
            "events": {name: asdict(match) for name, match in self.events.items()},
        }


def compare_states(seen: HudSeries, true: HudSeries, report: FollowReport | None = None) -> StateAgreement:
    """Compare a video with the true states.

    Args:
        seen: the video's series.
        true: the states as series of the same length (`series_of_states`).
        report: `follow(seen)`, if it was made already.

    Raises:
        ValueError: other lengths.
    """
    if seen.frames != true.frames:
        raise ValueError(f"the video has {seen.frames} frames, the states {true.frames}")
    report = report or follow(seen)
    facts = seen.facts
    initial: dict[str, bool | None] = {}
    for name, element in seen.elements.items():
        first = report.initial[name]
        value, tolerance = float(true.elements[name].low_T[0]), facts.tolerances[name]
        agrees = None if first is None else first[0] - tolerance <= value <= first[1] + tolerance
        initial[name] = agrees if element.low_T.size else None
    frames = {name: _tracked(seen, true, name) for name in seen.elements}
    truth = [event for event in follow(true).events if event.kind != "hit" or event.points >= SMALL_HIT_POINTS]
    events = {kind: _match(kind, report, truth, facts) for kind in EVENT_KINDS}
    return StateAgreement(initial, frames, events)


def _tracked(seen: HudSeries, true: HudSeries, name: str) -> tuple[bool | None, ...]:
    """Per frame: whether the read range meets a true value that held within the display's delay."""
    element, values_T = seen.elements[name], true.elements[name].low_T
    delay, tolerance = seen.facts.rules.display_delay_frames, seen.facts.tolerances[name]
    outcomes: list[bool | None] = []
    for t in range(seen.frames):
        if np.isnan(element.low_T[t]):
            outcomes.append(None)
            continue
        near = values_T[max(0, t - delay) : t + delay + 1]
        outcomes.append(
            bool(element.low_T[t] - tolerance <= near.max() and near.min() <= element.high_T[t] + tolerance)
        )
    return tuple(outcomes)


def _match(kind: str, report: FollowReport, truth: Sequence[HudEvent], facts: HudFacts) -> EventMatch:
    """Pair true and seen events of a kind and player, nearest first, within the display's delay."""
    reach = facts.rules.display_delay_frames
    # The bar's own first value at 0 is a state, no event of this clip.
    true_events = [event for event in truth if event.kind == kind and not (kind == "ko" and event.frame == 0)]
    # A KO may show from the first frame on (the whole bar drains), before memory says so.
    left = [event for event in report.events if event.kind == kind]
    delays: list[int] = []
    moments: list[tuple[int, bool | None]] = []
    for event in true_events:
        near = [
            other
            for other in left
            if other.player == event.player and (abs(other.frame - event.frame) <= reach or kind == "ko")
        ]
        if near:
            best = min(near, key=lambda other: abs(other.frame - event.frame))
            left.remove(best)
            delays.append(best.frame - event.frame)
            moments.append((event.frame, True))
        else:
            moments.append((event.frame, None if report.coverage[_element(event)] < MIN_COVERAGE else False))
    missed = sum(right is False for _, right in moments)
    known = {event.player for event in truth if event.kind == "ko"}
    # A small hit is within the reading's tolerance; a KO that is true may show more than once.
    invented = [
        event
        for event in left
        if (event.player not in known if kind == "ko" else kind != "hit" or event.points >= SMALL_HIT_POINTS)
    ]
    unreadable = len(moments) - len(delays) - missed
    moments += [(event.frame, False) for event in invented]
    delay = float(np.mean(delays)) if delays else None
    return EventMatch(len(delays), missed, unreadable, len(invented), delay, tuple(sorted(moments, key=_frame)))


def _frame(moment: tuple[int, bool | None]) -> int:
    return moment[0]


def _element(event: HudEvent) -> str:
    return f"{event.player}_{'meter' if event.kind == 'special' else 'hp'}"
