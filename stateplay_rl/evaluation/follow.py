"""Follow a video's HUD: what happens in it (hits, specials, KO), and what cannot happen in the game.

A value counts as changed once the next readable frame confirms it: one misread frame is no event. A value that leaves
and comes back at once is a flicker, which the game never shows either. Red parts of a bar are what a hit took and still
drains: the solid part falls with the hit, so events are read off it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from stateplay_rl.evaluation.profile import TIMER, GameRules
from stateplay_rl.evaluation.series import ElementSeries, HudSeries

STEADY_POINTS = 1.5
"""Changes below this are reading noise."""
RISE_POINTS = 2.5
"""A bar that may not rise must rise by this much to be accused."""
MERGE_FRAMES = 4
"""Falls of one bar at most so many frames apart are one event (several blows of a combo, one special)."""
KO_POINTS = 0.75
MIN_COVERAGE = 0.5
"""Below this share of readable frames, an element's rules are not judged."""


@dataclass(frozen=True)
class HudEvent:
    """Something that happened: `hit` (this player lost HP), `special`, `spend` or `ko` of this player.

    Args:
        kind: what.
        player: `p1` or `p2`, whose bar it is.
        frame: where it begins.
        points: how much was lost over the event.
    """

    kind: str
    player: str
    frame: int
    points: float


@dataclass(frozen=True)
class Violation:
    """Something that the game cannot do: `rise`, `jump` or `flicker` of an element at a frame."""

    kind: str
    element: str
    frame: int
    before: float
    after: float


@dataclass(frozen=True)
class FollowReport:
    """What a video's HUD did.

    Args:
        frames: length of the video.
        coverage: share of frames read, by element.
        initial: first readable range within the first frames, by element; None if unreadable there.
        events: in order of frames.
        violations: in order of frames.
    """

    frames: int
    coverage: dict[str, float]
    initial: dict[str, tuple[float, float] | None]
    events: tuple[HudEvent, ...]
    violations: tuple[Violation, ...]

    def lawful(self, element: str) -> bool | None:
        """Whether an element broke no rule; None if too few of its frames could be read."""
        if self.coverage[element] < MIN_COVERAGE:
            return None
        return not any(violation.element == element for violation in self.violations)

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class _Step:
    """A confirmed change of a value from one readable frame to a later one."""

    frame: int
    frames: int
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


def follow(series: HudSeries) -> FollowReport:
    """Events and impossible changes of a video."""
    rules = series.facts.rules
    events: list[HudEvent] = []
    violations: list[Violation] = []
    for name, element in series.elements.items():
        if name == TIMER:
            violations += _timer_violations(element, rules)
            continue
        player, _, bar = name.partition("_")
        steps, flickers = confirmed_steps(element)
        violations += [Violation("flicker", name, step.frame, step.before, step.after) for step in flickers]
        if bar == "hp":
            events += _hp_events(player, element, steps, rules)
            violations += _hp_violations(name, steps, rules)
        else:
            events += _meter_events(player, steps, rules)
            violations += _meter_violations(name, steps, rules)
    return FollowReport(
        series.frames,
        {name: element.coverage for name, element in series.elements.items()},
        {name: _initial(element) for name, element in series.elements.items()},
        tuple(sorted(events, key=lambda event: (event.frame, event.player, event.kind))),
        tuple(sorted(violations, key=lambda violation: (violation.frame, violation.element))),
    )


def _initial(element: ElementSeries) -> tuple[float, float] | None:
    """The range in the first frame; None if it cannot be read: a later frame may already be another state."""
    if len(element.low_T) == 0 or np.isnan(element.low_T[0]):
        return None
    return float(element.low_T[0]), float(element.high_T[0])


def confirmed_steps(element: ElementSeries, steady: float = STEADY_POINTS) -> tuple[list[_Step], list[_Step]]:
    """Changes that last, and flickers that are gone in the next readable frame; both of the solid part.

    The last readable frame has none after it: its change is believed.

    Args:
        element: ranges over time.
        steady: changes below this are reading noise.
    """
    frames = np.flatnonzero(element.readable)
    values = element.low_T[frames]
    steps: list[_Step] = []
    flickers: list[_Step] = []
    if len(values) == 0:
        return steps, flickers
    level, seen = float(values[0]), int(frames[0])
    for i in range(1, len(values)):
        value, frame = float(values[i]), int(frames[i])
        if abs(value - level) < steady:
            seen = frame
            continue
        following = float(values[i + 1]) if i + 1 < len(values) else value
        if abs(following - level) < steady:
            flickers.append(_Step(frame, frame - seen, level, value))
            continue
        steps.append(_Step(frame, frame - seen, level, value))
        level, seen = value, frame
    return steps, flickers


def _merged(falls: Sequence[_Step]) -> list[list[_Step]]:
    """Falls in groups that are one event each."""
    groups: list[list[_Step]] = []
    for fall in falls:
        if groups and fall.frame - groups[-1][-1].frame <= MERGE_FRAMES:
            groups[-1].append(fall)
        else:
            groups.append([fall])
    return groups


def _hp_events(player: str, element: ElementSeries, steps: list[_Step], rules: GameRules) -> list[HudEvent]:
    falls = [step for step in steps if step.change <= -rules.hit_fall]
    events = [
        HudEvent("hit", player, group[0].frame, round(group[0].before - group[-1].after, 2)) for group in _merged(falls)
    ]
    down = np.flatnonzero(element.low_T <= KO_POINTS)  # NaN compares false
    if len(down):
        events.append(HudEvent("ko", player, int(down[0]), 0.0))
    return events


def _hp_violations(name: str, steps: list[_Step], rules: GameRules) -> list[Violation]:
    found = []
    for step in steps:
        if step.change >= RISE_POINTS:
            found.append(Violation("rise", name, step.frame, step.before, step.after))
        elif -step.change > rules.max_hp_fall * max(1, step.frames):
            found.append(Violation("jump", name, step.frame, step.before, step.after))
    return found


def _meter_events(player: str, steps: list[_Step], rules: GameRules) -> list[HudEvent]:
    events = []
    for group in _merged([step for step in steps if step.change < 0]):
        points = round(group[0].before - group[-1].after, 2)
        kind = "special" if points >= rules.special_fall else "spend"
        if points >= rules.hit_fall:
            events.append(HudEvent(kind, player, group[0].frame, points))
    return events


def _meter_violations(name: str, steps: list[_Step], rules: GameRules) -> list[Violation]:
    return [
        Violation("jump", name, step.frame, step.before, step.after)
        for step in steps
        if step.change > rules.max_meter_gain * max(1, step.frames)
    ]


def _timer_violations(element: ElementSeries, rules: GameRules) -> list[Violation]:
    """A clock that runs up, or faster than it can; a wrong number for one frame is a flicker."""
    found = []
    steps, flickers = confirmed_steps(element, steady=0.5)
    found += [Violation("flicker", TIMER, step.frame, step.before, step.after) for step in flickers]
    last_tick: int | None = None
    for step in steps:
        ticks = -step.change
        # Frames since the last tick that was seen; before the first one, those without a reading at least.
        since = step.frames if last_tick is None else step.frame - last_tick
        allowed = since // rules.timer_tick_frames + (1 if last_tick is None else 0)
        if ticks < 0:
            found.append(Violation("rise", TIMER, step.frame, step.before, step.after))
        elif ticks > allowed:
            found.append(Violation("jump", TIMER, step.frame, step.before, step.after))
        last_tick = step.frame
    return found
