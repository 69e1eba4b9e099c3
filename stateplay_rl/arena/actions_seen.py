"""Does the commanded move happen, on arena? The engine says which moves a command makes, the pixels what is shown.

Nothing is calibrated. A window counts when the command is held and the engine obeys it; then the video must show it:
a walk over half of the way or more, a crouch or a jump in one frame of the window at least. Player 1 only; attacks are
measured by the events of the referee. T frames.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena.pixels import Reading, read_video, true_reading
from stateplay_rl.arena.referee import true_trajectory
from stateplay_rl.arena.state import AIR, CROUCH
from stateplay_rl.evaluation.action_following import ActionWindow, Calibration, windows_of
from stateplay_rl.evaluation.intervals import Bounds, bounds_of
from stateplay_rl.evaluation.referee import RefereeCase

MIN_WALK_PIXELS = 2.0
"""A true walk in a window is this long at least: one step."""
_WALKS = {"walk_left": ("LEFT", "RIGHT", -1.0), "walk_right": ("RIGHT", "LEFT", 1.0)}
_STANCES = {"crouch": ("DOWN", CROUCH), "jump": ("UP", AIR)}


class ArenaActions:
    """Arena behind `ActionReferee`."""

    name = "arena-actions-v1"

    def __init__(self) -> None:
        self.calibrations: Mapping[str, Calibration] = {}

    def obeyed(self, frames_ThwC: NDArray[np.uint8], case: RefereeCase, window: int) -> Mapping[str, Bounds]:
        """See `ActionReferee`.

        Raises:
            InputError: the first frame or the prompt is not arena's, or sizes disagree.
        """
        truth = true_trajectory(case.first_frame_hwC, case.held_RK, case.prompt, len(frames_ThwC))
        seen, true = read_video(frames_ThwC), true_reading(truth)
        windows = windows_of(case.held_RK, len(frames_ThwC), window)
        found = {}
        for name, (button, other, sign) in _WALKS.items():
            asked = [w for w in windows if button in w.buttons and other not in w.buttons]
            found[name] = bounds_of(
                _walked(seen, true, w, sign) for w in asked if _way(true, w, sign) >= MIN_WALK_PIXELS
            )
        for name, (button, stance) in _STANCES.items():
            asked = [w for w in windows if button in w.buttons]
            found[name] = bounds_of(_shown(seen, w, stance) for w in asked if _has(true, w, stance))
        return found


def _way(reading: Reading, window: ActionWindow, sign: float) -> float:
    """How far player 1 goes in the window, pixels."""
    x_T = reading.x_TP[:, 0]
    return sign * float(x_T[window.end - 1] - x_T[window.start])


def _walked(seen: Reading, true: Reading, window: ActionWindow, sign: float) -> bool | None:
    if not seen.bodies_ok_T[[window.start, window.end - 1]].all():
        return None
    return _way(seen, window, sign) >= 0.5 * _way(true, window, sign)


def _has(reading: Reading, window: ActionWindow, stance: int) -> bool:
    return bool((reading.stance_TP[window.start : window.end, 0] == stance).any())


def _shown(seen: Reading, window: ActionWindow, stance: int) -> bool | None:
    if not seen.bodies_ok_T[window.start : window.end].any():
        return None
    return _has(seen, window, stance)
