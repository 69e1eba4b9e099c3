"""Does the commanded move happen? A documented protocol, calibrated on real clips, silent where calibration fails.

**Protocol.** A video is cut into the action windows of its condition. A *probe* looks at one kind of command (walk,
attack, ...) and gives each window a number that grows with the evidence that the move happens, None for a window that
it cannot read. On real clips commands are obeyed more often than not, so the probe must tell windows with the command
from windows without: a threshold is chosen on one half of the clips (by cluster), and its balanced accuracy is
measured on the other. Only a probe whose measured accuracy has a lower 95 % bound of at least `MIN_ACCURACY` may speak;
another's numbers are withheld, with the reason.

On arena the referee knows the truth, so its probe needs no calibration (`arena/hud_referee.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.evaluation.intervals import Bounds, bounds_of
from stateplay_rl.nft.statistics import bootstrap_mean

MIN_ACCURACY = 0.75
"""Lower 95 % bound of the balanced accuracy that a probe needs."""
MIN_WINDOWS = 20
"""Windows of each kind that a calibration needs, on either half."""


@dataclass(frozen=True)
class ActionWindow:
    """One action window of a video: frames `start`..`end` (past), and the buttons held in it."""

    start: int
    end: int
    buttons: frozenset[str]


@dataclass(frozen=True)
class ProbedClip:
    """A probe's evidence on one clip: a number per window (None unreadable), and whether the move was commanded."""

    cluster: int
    evidence: tuple[float | None, ...]
    commanded: tuple[bool, ...]


class ActionProbe(Protocol):
    """Evidence for one kind of command."""

    name: str

    def commanded(self, window: ActionWindow) -> bool:
        """Whether a window asks for this move."""

    def evidence(self, frames_ThwC: NDArray[np.uint8], window: ActionWindow) -> float | None:
        """How much speaks for the move in this window; None if it cannot be seen."""


def windows_of(held_RK: NDArray[np.generic], frames: int, window: int) -> tuple[ActionWindow, ...]:
    """The action windows of a video.

    Args:
        held_RK: held buttons [rows, 11].
        frames: length of the video.
        window: rows per window.

    Raises:
        ValueError: another number of buttons, or a window below 1.
    """
    if window < 1 or held_RK.ndim != 2 or held_RK.shape[1] != len(BUTTONS):
        raise ValueError(f"window {window} and buttons of shape {held_RK.shape}: expected [rows, {len(BUTTONS)}]")
    found = []
    for start in range(0, min(frames, len(held_RK)), window):
        pressed = frozenset(name for k, name in enumerate(BUTTONS) if held_RK[start, k])
        found.append(ActionWindow(start, min(start + window, frames), pressed))
    return tuple(found)


def probe_clip(
    probe: ActionProbe, frames_ThwC: NDArray[np.uint8], windows: Sequence[ActionWindow], cluster: int
) -> ProbedClip:
    """A probe's evidence on a clip."""
    return ProbedClip(
        cluster,
        tuple(probe.evidence(frames_ThwC, window) for window in windows),
        tuple(probe.commanded(window) for window in windows),
    )


@dataclass(frozen=True)
class Calibration:
    """What a probe is worth on real clips.

    Args:
        probe: its name.
        threshold: evidence from which the move counts as done; None if none could be chosen.
        accuracy: balanced accuracy on the other half, 0..1; None if not measured.
        accuracy_low: lower end of its 95 % interval over clusters.
        reason: why the probe may not speak; empty if it may.
    """

    probe: str
    threshold: float | None
    accuracy: float | None
    accuracy_low: float | None
    reason: str

    @property
    def usable(self) -> bool:
        return not self.reason


def calibrate(probe: str, clips: Sequence[ProbedClip], seed: int = 0) -> Calibration:
    """Choose a probe's threshold on half of the clusters, and measure it on the other half.

    Args:
        probe: its name.
        clips: real clips.
        seed: decides which half a cluster falls into, and the bootstrap.
    """
    clusters = sorted({clip.cluster for clip in clips})
    chosen = set(np.random.default_rng(seed).permutation(clusters)[: len(clusters) // 2].tolist())
    halves = [c for c in clips if c.cluster in chosen], [c for c in clips if c.cluster not in chosen]
    for half in halves:
        counts = [sum(kind == wanted for kind, _ in _seen(half)) for wanted in (True, False)]
        if min(counts) < MIN_WINDOWS:
            reason = f"{counts[0]} windows with the command and {counts[1]} without, {MIN_WINDOWS} of each are needed"
            return Calibration(probe, None, None, None, reason)
    threshold = _best_threshold(_seen(halves[0]))
    by_cluster: dict[int, list[ProbedClip]] = {}
    for clip in halves[1]:
        by_cluster.setdefault(clip.cluster, []).append(clip)
    accuracy = _balanced(_seen(halves[1]), threshold)
    # Each window weighs so that both kinds count the same; the mean of the weights' outcomes is the accuracy.
    kinds = [kind for kind, _ in _seen(halves[1])]
    weight = {True: 0.5 * len(kinds) / kinds.count(True), False: 0.5 * len(kinds) / kinds.count(False)}
    outcomes = [
        [weight[kind] * ((value >= threshold) == kind) for kind, value in _seen(members)]
        for members in by_cluster.values()
    ]
    interval = bootstrap_mean([values for values in outcomes if values], seed=seed)
    low = interval.low
    reason = ""
    if low is None or low < MIN_ACCURACY:
        reason = f"balanced accuracy {accuracy:.2f} (lower bound {low if low is None else round(low, 2)}) on real clips"
    return Calibration(probe, threshold, accuracy, low, reason)


def _seen(clips: Sequence[ProbedClip]) -> list[tuple[bool, float]]:
    """(commanded, evidence) of every readable window."""
    return [
        (kind, value)
        for clip in clips
        for kind, value in zip(clip.commanded, clip.evidence, strict=True)
        if value is not None
    ]


def _best_threshold(seen: Sequence[tuple[bool, float]]) -> float:
    values = sorted({value for _, value in seen})
    middles = [(a + b) / 2 for a, b in pairwise(values)] or values
    return max(middles, key=lambda threshold: _balanced(seen, threshold))


def _balanced(seen: Sequence[tuple[bool, float]], threshold: float) -> float:
    """Mean of the two shares told right: windows with the command, and without."""
    shares = []
    for wanted in (True, False):
        values = [value >= threshold for kind, value in seen if kind == wanted]
        shares.append(sum(value == wanted for value in values) / len(values))
    return sum(shares) / 2


@dataclass(frozen=True)
class FollowedActions:
    """How often commanded moves happen in generated videos; None with a reason where the probe may not speak."""

    probe: str
    obeyed: Bounds | None
    reason: str


def followed(calibration: Calibration, clips: Sequence[ProbedClip]) -> FollowedActions:
    """The share of commanded windows in which the move is seen, if the calibration allows it."""
    if not calibration.usable or calibration.threshold is None:
        return FollowedActions(calibration.probe, None, calibration.reason)
    threshold = calibration.threshold
    outcomes = [
        None if value is None else bool(value >= threshold)
        for clip in clips
        for kind, value in zip(clip.commanded, clip.evidence, strict=True)
        if kind
    ]
    return FollowedActions(calibration.probe, bounds_of(outcomes), "")


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

    def evidence(self, frames_ThwC: NDArray[np.uint8], window: ActionWindow) -> float | None:
        """Motion in the window over the video's median motion; None for a window of one frame."""
        if window.end - window.start < 2:
            return None
        top, bottom = (int(share * frames_ThwC.shape[1]) for share in self.stage_rows)
        stage = frames_ThwC[:, top:bottom:2, ::2, 1].astype(np.float32)
        motion_T = np.abs(np.diff(stage, axis=0)).mean(axis=(1, 2))
        usual = float(np.median(motion_T))
        return float(motion_T[window.start : window.end - 1].mean() / max(usual, 0.1))


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

    def evidence(self, frames_ThwC: NDArray[np.uint8], window: ActionWindow) -> float | None:
        """Shift (pixels) of the scene from the window's first to its last frame, positive against the walk."""
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
