"""The referee: a video against the engine's true trajectory for the same first frame, buttons and prompt.

Total = 70 % bars + 30 % bodies. Each part is 1 - error / error of the display frozen on its first frame,
so the engine's own rendering gets 100 and the frozen frame 0, clip by clip. `python -m
stateplay_rl.arena.calibrate` measures both ends. Differences from a plain mean over all bars: HP and
meter are normalised separately and only where they truly change; where they do not, wrong movement is a
penalty (else a frozen video would earn points for every bar that stands still).
Shapes: T frames, P = 2 players.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena.events import EventReport, compare_events
from stateplay_rl.arena.game import simulate_first
from stateplay_rl.arena.pixels import Reading, read_first_state, read_video, true_reading
from stateplay_rl.arena.prompts import read_strategy
from stateplay_rl.arena.state import Trajectory
from stateplay_rl.errors import InputError

REFEREE_VERSION = 2
ENGINE_TOTAL = 100.0
FROZEN_TOTAL = 0.0
BAR_SHARE = 0.7

# Error of a frozen display (pixel frames) from which a part counts in full; smaller changes count less,
# because there one wrong pixel would decide.
FULL_HP_ERROR = 60.0
FULL_METER_ERROR = 40.0
FULL_BODY_ERROR = 120.0
LOWEST_PART = -1.0
UNCHANGED_PENALTY = 0.5
BODY_TOLERANCE = 1.0
# One pixel of a bar is 4 points; the real game's readings are allowed as much (2 of 160 HP, 3 of the meter).
BAR_TOLERANCE = 1.0
STANCE_ERROR = 4.0
MAX_BODY_ERROR = 24.0
MISSING_BODY_ERROR = 16.0
MIN_READABLE_SHARE = 0.75
# A display is frozen if it never moves by a quarter of the true change (and at least 0.75 px).
FROZEN_SHARE = 0.25
FROZEN_PIXELS = 0.75


@dataclass(frozen=True)
class RefereeReport:
    """The referee's numbers for one video.

    Args:
        total: Unclipped total; engine 100, frozen first frame 0. 0 if not readable.
        hp: HP part in points (100 = exact, 0 = as wrong as frozen); None where HP truly never changes.
        meter: Meter part likewise.
        position: Body position and stance part likewise; None where no body truly moves.
        stance_agreement: Share of (frame, fighter) with the true stance, 0..1.
        events: Found, missed and invented events, and their timing.
        readable: False if too many frames are broken.
        readable_share: Share of frames that could be read, 0..1.
        frozen_hp: HP truly changes and the display never does; None where it truly never changes.
        frozen_meter: Likewise for the meter.
    """

    total: float
    hp: float | None
    meter: float | None
    position: float | None
    stance_agreement: float
    events: EventReport
    readable: bool
    readable_share: float
    frozen_hp: bool | None
    frozen_meter: bool | None

    @property
    def score(self) -> float:
        """Points for a judge: the total clipped to 0..100, 0 for an unreadable video."""
        return float(min(100.0, max(0.0, self.total))) if self.readable else 0.0

    @property
    def frozen_display(self) -> bool:
        """Whether any bar kind that truly changes stands still in the video."""
        return bool(self.frozen_hp) or bool(self.frozen_meter)

    @property
    def timing(self) -> float | None:
        """Mean timing error of the events found, frames; None if none was found."""
        return self.events.timing_frames

    def details(self) -> dict[str, object]:
        """Plain JSON values."""
        return {**asdict(self), "score": self.score, "frozen_display": self.frozen_display}


@dataclass(frozen=True)
class _Part:
    """One part of the total: `value` 1 = exact, 0 = frozen; `weight` 0 if it truly never changes."""

    value: float
    weight: float
    penalty: float


def _part(error: float, frozen_error: float, full_error: float) -> _Part:
    if frozen_error == 0.0:
        return _Part(0.0, 0.0, UNCHANGED_PENALTY * min(1.0, error / full_error))
    return _Part(max(LOWEST_PART, 1.0 - error / frozen_error), min(1.0, frozen_error / full_error), 0.0)


def _bar_errors(seen_TP: NDArray[np.float32], true_TP: NDArray[np.float32]) -> tuple[float, float]:
    """Pixel-frame error of a kind of bar, and that of the bars frozen on the first frame."""
    error = _beyond(np.abs(np.round(seen_TP) - true_TP))[1:].sum()
    frozen = _beyond(np.abs(true_TP[:1] - true_TP))[1:].sum()
    return float(error), float(frozen)


def _beyond(distance_TP: NDArray[np.float32]) -> NDArray[np.float32]:
    """The part of a bar's distance that counts; the same rule for the video and for the frozen display."""
    beyond: NDArray[np.float32] = np.maximum(0.0, distance_TP - BAR_TOLERANCE)
    return beyond


def _body_error(seen: Reading, true: Reading, frozen: bool) -> float:
    """Summed position and stance error over frames and fighters (of the true first frame if `frozen`)."""
    x_TP, height_TP, stance_TP = seen.x_TP, seen.height_TP, seen.stance_TP
    if frozen:
        x_TP, height_TP, stance_TP = true.x_TP[:1], true.height_TP[:1], true.stance_TP[:1]
    distance = np.maximum(0.0, np.abs(x_TP - true.x_TP) - BODY_TOLERANCE)
    distance = distance + np.maximum(0.0, np.abs(height_TP - true.height_TP) - BODY_TOLERANCE)
    distance = distance + STANCE_ERROR * (stance_TP != true.stance_TP)
    distance = np.where(np.isnan(distance), MISSING_BODY_ERROR, np.minimum(distance, MAX_BODY_ERROR))
    return float(distance[1:].sum())


def _frozen(seen_TP: NDArray[np.float32], true_TP: NDArray[np.float32]) -> bool | None:
    change = float(np.abs(true_TP - true_TP[:1]).max())
    if change == 0.0:
        return None
    # Median of three frames: one noisy frame is no movement.
    series = np.abs(np.round(seen_TP) - true_TP[:1])
    padded = np.concatenate([series[:1], series, series[-1:]])
    smooth = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    return bool(smooth.max() < max(FROZEN_PIXELS, FROZEN_SHARE * change))


def _total(hp: _Part, meter: _Part, body: _Part) -> float:
    """Weighted total in points; parts that truly never change give their share to the others."""
    penalty = hp.penalty + meter.penalty
    bar_weight = hp.weight + meter.weight
    shares: list[tuple[float, float]] = []
    if bar_weight > 0.0:
        bars = (hp.weight * hp.value + meter.weight * meter.value) / bar_weight - penalty
        shares.append((BAR_SHARE, bars))
    if body.weight > 0.0:
        shares.append(((1.0 - BAR_SHARE) * body.weight, body.value))
    if not shares:
        # Nothing truly changes at all: standing still is right.
        return 100.0 * (1.0 - min(1.0, penalty + body.penalty))
    total = sum(share * value for share, value in shares) / sum(share for share, _ in shares)
    if bar_weight == 0.0:
        total -= penalty
    return 100.0 * (total - (1.0 - BAR_SHARE) * body.penalty)


def compare(video_ThwC: NDArray[np.uint8], truth: Trajectory) -> RefereeReport:
    """Compare a video with a known true trajectory.

    Args:
        video_ThwC: uint8 RGB [T, 64, 96, 3].
        truth: The engine's trajectory of T frames.

    Raises:
        InputError: other size, or another number of frames.
    """
    if len(video_ThwC) != len(truth.timer_T):
        raise InputError(f"the video has {len(video_ThwC)} frames, the trajectory {len(truth.timer_T)}")
    seen, true = read_video(video_ThwC), true_reading(truth)
    hp = _part(*_bar_errors(seen.hp_TP, true.hp_TP), FULL_HP_ERROR)
    meter = _part(*_bar_errors(seen.meter_TP, true.meter_TP), FULL_METER_ERROR)
    body = _part(_body_error(seen, true, False), _body_error(seen, true, True), FULL_BODY_ERROR)
    readable_share = float(seen.readable.mean())
    readable = readable_share >= MIN_READABLE_SHARE
    return RefereeReport(
        total=_total(hp, meter, body) if readable else 0.0,
        hp=100.0 * hp.value if hp.weight else None,
        meter=100.0 * meter.value if meter.weight else None,
        position=100.0 * body.value if body.weight else None,
        stance_agreement=float((seen.stance_TP == true.stance_TP).mean()),
        events=compare_events(seen, true),
        readable=readable,
        readable_share=readable_share,
        frozen_hp=_frozen(seen.hp_TP, true.hp_TP),
        frozen_meter=_frozen(seen.meter_TP, true.meter_TP),
    )


def true_trajectory(
    first_frame_hwC: NDArray[np.uint8], held_RK: NDArray[np.generic], prompt: str, frames: int
) -> Trajectory:
    """What the true engine does after a first frame, from its pixels, the buttons and the prompt alone."""
    first = read_first_state(first_frame_hwC)
    return simulate_first(first, held_RK, read_strategy(prompt).name, frames=frames)


def judge_video(
    first_frame_hwC: NDArray[np.uint8],
    held_RK: NDArray[np.generic],
    prompt: str,
    video_ThwC: NDArray[np.uint8],
) -> RefereeReport:
    """Judge a video.

    Args:
        first_frame_hwC: uint8 RGB [64, 96, 3].
        held_RK: Player 1's held buttons [rows >= T - 1, 11].
        prompt: Names the opponent's strategy.
        video_ThwC: uint8 RGB [T, 64, 96, 3].

    Raises:
        InputError: the first frame or the prompt is not arena's, or sizes disagree.
    """
    truth = true_trajectory(first_frame_hwC, held_RK, prompt, len(video_ThwC))
    return compare(video_ThwC, truth)
