"""Arena behind the evaluation package's protocols: its HUD reader and its referee (commands: `actions_seen.py`).

So everything that is built on a HUD (follower, checks, held-out referee curve, data check) also runs where the truth is
known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena import layout as lay
from stateplay_rl.arena.moves import HP_MAX, METER_MAX, SPECIAL_COST
from stateplay_rl.arena.pixels import MAX_BAR_RESIDUAL, Reading, read_bar, read_timer, read_video, true_reading
from stateplay_rl.arena.referee import BAR_TOLERANCE, BODY_TOLERANCE, REFEREE_VERSION, compare, true_trajectory
from stateplay_rl.arena.state import TIMER_FRAMES
from stateplay_rl.evaluation.horizon import HorizonPart, spans_of
from stateplay_rl.evaluation.hud import ElementReading, HudReading, check_picture
from stateplay_rl.evaluation.intervals import Bounds
from stateplay_rl.evaluation.profile import TIMER, GameRules, HudFacts
from stateplay_rl.evaluation.referee import RefereeCase, RefereeVerdict

ARENA_FACTS = HudFacts(
    game="arena",
    tolerances={
        "p1_hp": float(lay.HP_PER_PIXEL),
        "p2_hp": float(lay.HP_PER_PIXEL),
        "p1_meter": float(lay.METER_PER_PIXEL),
        "p2_meter": float(lay.METER_PER_PIXEL),
        TIMER: 0.0,
    },
    rules=GameRules(
        max_hp_fall=HP_MAX / 2,
        max_meter_gain=METER_MAX / 2,
        # One pixel of the bar less than the price: a reading may be off by as much.
        special_fall=SPECIAL_COST - lay.METER_PER_PIXEL,
        hit_fall=1.5 * lay.HP_PER_PIXEL,
        timer_max=99,
        timer_tick_frames=TIMER_FRAMES,
        display_delay_frames=4,
    ),
)
"""What arena's HUD shows and what its engine cannot do; one pixel of a bar is 4 points."""

_BARS = {
    "p1_hp": (lay.HP_BARS[0], lay.HP_FULL, lay.HP_PER_PIXEL),
    "p2_hp": (lay.HP_BARS[1], lay.HP_FULL, lay.HP_PER_PIXEL),
    "p1_meter": (lay.METER_BARS[0], lay.METER_FULL, lay.METER_PER_PIXEL),
    "p2_meter": (lay.METER_BARS[1], lay.METER_FULL, lay.METER_PER_PIXEL),
}
_FRAME_LEVELS = 40.0
"""A bar's frame must be this much brighter than the HUD's back, levels of 255."""


class ArenaReader:
    """Reads arena's HUD. Its bars have no draining part, so `low` and `high` are equal."""

    game = "arena"
    facts = ARENA_FACTS

    def read(self, frame_hwC: NDArray[np.uint8]) -> HudReading:
        """Read one frame.

        Args:
            frame_hwC: uint8 RGB; a picture of another size than arena's is unreadable.

        Raises:
            InputError: not a colour picture.
        """
        check_picture(frame_hwC)
        return self.read_video(frame_hwC[None])[0]

    def read_video(self, frames_ThwC: NDArray[np.uint8]) -> list[HudReading]:
        """Read every frame of a video, uint8 RGB [T, h, w, 3]."""
        if frames_ThwC.shape[1:] != (lay.HEIGHT, lay.WIDTH, 3):
            nothing = ElementReading(None, None, 0.0, "not arena's picture size")
            return [HudReading(dict.fromkeys(self.facts.elements, nothing), None) for _ in frames_ThwC]
        framed_T = _framed(frames_ThwC)
        series = {name: self._bar(frames_ThwC, name) for name in _BARS}
        readings = []
        for t, frame_hwC in enumerate(frames_ThwC):
            elements = {name: values[t] for name, values in series.items()}
            elements[TIMER] = _timer(frame_hwC)
            if not framed_T[t]:
                elements = dict.fromkeys(self.facts.elements, ElementReading(None, None, 0.0, "no HUD found"))
            readings.append(HudReading(elements, None))
        return readings

    def _bar(self, frames_ThwC: NDArray[np.uint8], name: str) -> list[ElementReading]:
        bar, colour, points = _BARS[name]
        length_T, residual_T = read_bar(frames_ThwC, bar, colour)
        found = []
        for length, residual in zip(length_T.tolist(), residual_T.tolist(), strict=True):
            if residual > MAX_BAR_RESIDUAL:
                found.append(ElementReading(None, None, 0.0, "no clean step"))
                continue
            value = points * round(length, 2)
            found.append(ElementReading(value, value, round(1.0 - residual / MAX_BAR_RESIDUAL, 3)))
        return found


def _framed(frames_ThwC: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether the frames of the two HP bars stand out from the HUD's back: bool [T]."""
    left, right = lay.HP_BARS
    shown_T = np.ones(len(frames_ThwC), np.bool_)
    back_T = frames_ThwC[:, 0, left.left : left.left + left.length].astype(np.float32).mean(axis=(1, 2))
    for bar in (left, right):
        line = frames_ThwC[:, bar.top - 1, bar.left : bar.left + bar.length].astype(np.float32).mean(axis=(1, 2))
        shown_T &= line - back_T >= _FRAME_LEVELS
    return shown_T


def _timer(frame_hwC: NDArray[np.uint8]) -> ElementReading:
    value = float(read_timer(frame_hwC))
    return ElementReading(value, value, 1.0)


class ArenaReferee:
    """Arena's referee on the interface of the real game's: it knows the engine's own trajectory, so both bounds agree.

    An unreadable video counts 0 in the lower bound and is left out of the upper one.
    """

    name = f"arena-referee-v{REFEREE_VERSION}"

    def judge(self, frames_ThwC: NDArray[np.uint8], case: RefereeCase) -> RefereeVerdict:
        """Judge a video.

        Raises:
            InputError: the first frame or the prompt is not arena's, or sizes disagree.
        """
        truth = true_trajectory(case.first_frame_hwC, case.held_RK, case.prompt, len(frames_ThwC))
        report = compare(frames_ThwC, truth)
        events = report.events
        parts = {"events": Bounds(events.found, events.missed + events.invented, 0)}
        return RefereeVerdict(
            low=report.score,
            high=report.score if report.readable else None,
            coverage=report.readable_share,
            parts=parts,
            details={"frozen_display": report.frozen_display},
            horizon=_horizon(read_video(frames_ThwC), true_reading(truth)),
        )


def _horizon(seen: Reading, true: Reading) -> tuple[HorizonPart, ...]:
    """Quarters of a video: shares of bars and bodies that are where the engine has them.

    The whole video's points are not cut into quarters: they are relative to a display that stands still.
    """
    bars_ok_TX = np.repeat(seen.hud_ok_T[:, None], 4, axis=1)
    seen_TX = np.round(np.concatenate([seen.hp_TP, seen.meter_TP], axis=1))
    bars_TX = np.abs(seen_TX - np.concatenate([true.hp_TP, true.meter_TP], axis=1)) <= BAR_TOLERANCE
    bodies_ok_TP = np.repeat(seen.bodies_ok_T[:, None], 2, axis=1)
    bodies_TP = (np.abs(seen.x_TP - true.x_TP) <= BODY_TOLERANCE) & (seen.stance_TP == true.stance_TP)
    found = []
    for start, end in spans_of(len(seen.hud_ok_T)):
        span = slice(start, end)
        bars = _bounds(bars_TX[span], bars_ok_TX[span])
        bodies = _bounds(bodies_TP[span], bodies_ok_TP[span])
        coverage = float(seen.readable[span].mean())
        found.append(HorizonPart(start, end, {"bars": bars, "bodies": bodies}, bars, coverage))
    return tuple(found)


def _bounds(right: NDArray[np.bool_], readable: NDArray[np.bool_]) -> Bounds:
    agreed = int((right & readable).sum())
    return Bounds(agreed, int(readable.sum()) - agreed, int((~readable).sum()))
