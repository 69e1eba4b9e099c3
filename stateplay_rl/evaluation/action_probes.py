"""Probes for the real game: what speaks for a commanded move. Blunt; calibration says what they are worth.

Shapes: T frames, h w picture height and width, C = 3 colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.evaluation.action_following import ActionProbe, ActionWindow


class MotionProbe:
    """Evidence for an attack: picture motion in the window over that of the video, beside the HUD.

    A blunt instrument: a busy opponent moves too. Calibration decides whether it says anything.
    """

    name = "attack"
    _attacks = frozenset(("Y", "X", "Z", "A", "B", "C"))

    def __init__(self, stage_rows: tuple[float, float] = (0.2, 0.9)) -> None:
        self.stage_rows = stage_rows

    def commanded(self, window: ActionWindow) -> bool:
        """Whether a punch or kick is held."""
        return bool(window.buttons & self._attacks)

    def evidence(self, frames_ThwC: NDArray[np.uint8], windows: Sequence[ActionWindow]) -> tuple[float | None, ...]:
        """Motion in each window over the video's median motion; None for a window of one frame."""
        top, bottom = (int(share * frames_ThwC.shape[1]) for share in self.stage_rows)
        stage = frames_ThwC[:, top:bottom:2, ::2, 1].astype(np.float32)
        motion_T = np.abs(np.diff(stage, axis=0)).mean(axis=(1, 2))
        usual = max(float(np.median(motion_T)), 0.1) if len(motion_T) else 0.1
        return tuple(
            float(motion_T[w.start : w.end - 1].mean()) / usual if w.end - w.start > 1 else None for w in windows
        )


class WalkProbe:
    """Evidence for walking one way: drift of the picture's columns in the window.

    The camera follows the fighters, so the scene drifts against the walk; the sign and whether it says anything is for
    the calibration to find out.
    """

    def __init__(self, button: str, reach_pixels: int = 12) -> None:
        if button not in ("LEFT", "RIGHT"):
            raise ValueError(f"walk is LEFT or RIGHT, not {button!r}")
        self.name = f"walk_{button.lower()}"
        self.button = button
        self.reach_pixels = reach_pixels

    def commanded(self, window: ActionWindow) -> bool:
        """Whether this way is held, and the other is not."""
        other = "RIGHT" if self.button == "LEFT" else "LEFT"
        return self.button in window.buttons and other not in window.buttons

    def evidence(self, frames_ThwC: NDArray[np.uint8], windows: Sequence[ActionWindow]) -> tuple[float | None, ...]:
        """Shift (pixels) of the scene from each window's first to its last frame, positive against the walk."""
        return tuple(self._shift(frames_ThwC, window) for window in windows)

    def _shift(self, frames_ThwC: NDArray[np.uint8], window: ActionWindow) -> float | None:
        if window.end - window.start < 2:
            return None
        height = frames_ThwC.shape[1]
        band = slice(int(0.25 * height), int(0.85 * height))
        first, last = (
            frames_ThwC[t, band, :, 1].astype(np.float32).mean(axis=0) for t in (window.start, window.end - 1)
        )
        reach = self.reach_pixels
        inner = first[reach:-reach] - first[reach:-reach].mean()
        errors = []
        for shift in range(-reach, reach + 1):
            moved = last[reach + shift : len(last) - reach + shift]
            errors.append(float(np.square(inner - (moved - moved.mean())).sum()))
        shift = int(np.argmin(errors)) - reach
        return float(shift if self.button == "LEFT" else -shift)


def real_probes() -> Mapping[str, ActionProbe]:
    """The probes for the real game, by name."""
    probes: tuple[ActionProbe, ...] = (MotionProbe(), WalkProbe("LEFT"), WalkProbe("RIGHT"))
    return {probe.name: probe for probe in probes}
