"""Events seen in bar lengths and stances, and how those of a video match the true ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena.pixels import Reading
from stateplay_rl.arena.state import AIR, DOWN

# Smaller bar changes (a guarded blow gives one pixel of meter) are no events: noise would invent them.
MIN_PIXELS = 2
# A change that a decoder smears over neighbouring frames is one event.
MERGE_FRAMES = 2
MATCH_FRAMES = 4


@dataclass(frozen=True)
class SeenEvent:
    """``hp_loss``, ``meter_cost``, ``meter_gain``, ``knockdown`` or ``jump`` of a player at a frame."""

    kind: str
    player: int
    frame: int


@dataclass(frozen=True)
class EventReport:
    """Events of a video against the truth.

    Args:
        found: True events that the video shows within `MATCH_FRAMES` frames.
        missed: True events that it does not show.
        invented: Events that it shows and that are not true.
        timing_frames: Mean absolute timing error of those found, frames; None if none is.
    """

    found: int
    missed: int
    invented: int
    timing_frames: float | None

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall, 0..1; None when there is nothing to find or invent."""
        total = 2 * self.found + self.missed + self.invented
        return 2 * self.found / total if total else None


def _changes(pixels_T: NDArray[np.float32]) -> list[tuple[int, float]]:
    """(frame, change) of every step of a rounded series; steps close together are merged."""
    delta_T = np.diff(np.round(pixels_T))
    merged: list[tuple[int, float]] = []
    last = -10
    for t in np.nonzero(delta_T)[0].tolist():
        change = float(delta_T[t])
        same = bool(merged) and t + 1 - last <= MERGE_FRAMES and (merged[-1][1] > 0) == (change > 0)
        if same:
            merged[-1] = (merged[-1][0], merged[-1][1] + change)
        else:
            merged.append((t + 1, change))
        last = t + 1
    return [(frame, change) for frame, change in merged if abs(change) >= MIN_PIXELS]


def seen_events(reading: Reading) -> list[SeenEvent]:
    """All events of a reading, by frame."""
    events: list[SeenEvent] = []
    for player in (0, 1):
        for frame, change in _changes(reading.hp_TP[:, player]):
            if change < 0:
                events.append(SeenEvent("hp_loss", player, frame))
        for frame, change in _changes(reading.meter_TP[:, player]):
            events.append(SeenEvent("meter_gain" if change > 0 else "meter_cost", player, frame))
        stance_T = reading.stance_TP[:, player]
        for kind, stance in (("knockdown", DOWN), ("jump", AIR)):
            begins = (stance_T[1:] == stance) & (stance_T[:-1] != stance)
            events += [SeenEvent(kind, player, int(t) + 1) for t in np.nonzero(begins)[0]]
    return sorted(events, key=lambda event: (event.frame, event.kind, event.player))


def compare_events(seen: Reading, true: Reading) -> EventReport:
    """Match each true event with the nearest unused event of the same kind and player."""
    shown, expected = seen_events(seen), seen_events(true)
    unused = list(shown)
    offsets: list[int] = []
    for event in expected:
        near = [
            other
            for other in unused
            if (other.kind, other.player) == (event.kind, event.player)
            and abs(other.frame - event.frame) <= MATCH_FRAMES
        ]
        if near:
            best = min(near, key=lambda other: abs(other.frame - event.frame))
            unused.remove(best)
            offsets.append(abs(best.frame - event.frame))
    timing = float(np.mean(offsets)) if offsets else None
    return EventReport(len(offsets), len(expected) - len(offsets), len(unused), timing)
