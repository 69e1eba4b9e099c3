"""Does the commanded move happen? A documented protocol, calibrated on real clips, silent where calibration fails.

**Protocol.** A video is cut into the action windows of its condition. A *probe* looks at one kind of command (walk,
attack, ...) and gives each window a number that grows with the evidence that the move happens, None for a window that
it cannot read. On real clips commands are obeyed more often than not, so the probe must tell windows with the command
from windows without: a threshold is chosen on one half of the clips (by cluster), and its balanced accuracy is
measured on the other. Only a probe whose measured accuracy has a lower 95 % bound of at least `MIN_ACCURACY` may speak;
another's numbers are withheld, with the reason.

On arena the engine knows what each command does, so nothing has to be calibrated (`arena/actions_seen.py`). Probes for
the real game stand in `action_probes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.evaluation.intervals import Bounds, bounds_of
from stateplay_rl.evaluation.referee import RefereeCase
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

    def evidence(self, frames_ThwC: NDArray[np.uint8], windows: Sequence[ActionWindow]) -> tuple[float | None, ...]:
        """How much speaks for the move in each window; None if it cannot be seen."""


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
        probe.evidence(frames_ThwC, windows),
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
        real: how often the commanded move is seen in the real clips of that half: what generated ones are held against.
    """

    probe: str
    threshold: float | None
    accuracy: float | None
    accuracy_low: float | None
    reason: str
    real: Bounds | None = None

    @property
    def usable(self) -> bool:
        return not self.reason

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return {**asdict(self), "real": None if self.real is None else self.real.to_json()}


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
    return Calibration(probe, threshold, accuracy, low, reason, _obeyed(halves[1], threshold))


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


def _obeyed(clips: Sequence[ProbedClip], threshold: float) -> Bounds:
    """Of the windows with the command, those in which the move is seen."""
    return bounds_of(
        None if value is None else bool(value >= threshold)
        for clip in clips
        for kind, value in zip(clip.commanded, clip.evidence, strict=True)
        if kind
    )


class ActionReferee(Protocol):
    """Says of one video at a time which commanded moves happen in it."""

    name: str
    """Stands in every record."""
    calibrations: Mapping[str, Calibration]
    """What each probe is worth; those that may not speak are here too. Empty where the truth is known."""

    def obeyed(self, frames_ThwC: NDArray[np.uint8], case: RefereeCase, window: int) -> Mapping[str, Bounds]:
        """Of the windows that command a move, those in which it happens, by probe; withheld probes are left out."""


class CalibratedActions:
    """Probes behind their calibration: one that failed it is never asked."""

    name = "probes-v1"

    def __init__(self, probes: Mapping[str, ActionProbe], calibrations: Mapping[str, Calibration]) -> None:
        self.calibrations = calibrations
        self._probes = {name: probe for name, probe in probes.items() if calibrations[name].usable}

    def obeyed(self, frames_ThwC: NDArray[np.uint8], case: RefereeCase, window: int) -> Mapping[str, Bounds]:
        """See `ActionReferee`.

        Args:
            frames_ThwC: uint8 RGB.
            case: the condition; its held buttons are the commands.
            window: rows per action window.
        """
        windows = windows_of(case.held_RK, len(frames_ThwC), window)
        found = {}
        for name, probe in self._probes.items():
            threshold = self.calibrations[name].threshold
            assert threshold is not None, "a usable calibration has a threshold"
            found[name] = _obeyed([probe_clip(probe, frames_ThwC, windows, 0)], threshold)
        return found
