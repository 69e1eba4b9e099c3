"""Action following: windows, calibration that withholds, and what is then said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.evaluation.action_following import (
    ActionWindow,
    CalibratedActions,
    Calibration,
    ProbedClip,
    calibrate,
    probe_clip,
    windows_of,
)
from stateplay_rl.evaluation.action_probes import MotionProbe, WalkProbe, real_probes
from stateplay_rl.evaluation.intervals import Bounds
from stateplay_rl.evaluation.referee import RefereeCase


def clips(separation: float, count: int = 40, seed: int = 0) -> list[ProbedClip]:
    """Clips of 10 windows, every second commanded; evidence is noise plus `separation` where commanded."""
    rng = np.random.default_rng(seed)
    commanded = tuple(bool(k % 2) for k in range(10))
    return [
        ProbedClip(cluster, tuple(float(rng.normal() + separation * kind) for kind in commanded), commanded)
        for cluster in range(count)
    ]


class Replayed:
    """Gives a clip's prepared evidence, whatever the video."""

    name = "attack"

    def __init__(self, clip: ProbedClip) -> None:
        self.clip = clip

    def commanded(self, window: ActionWindow) -> bool:
        return self.clip.commanded[window.start]

    def evidence(self, _: np.ndarray, windows: Sequence[ActionWindow]) -> tuple[float | None, ...]:
        return tuple(self.clip.evidence[window.start] for window in windows)


def obeyed(calibration: Calibration, seen: Sequence[ProbedClip]) -> Mapping[str, Bounds]:
    """What is said of clips of one frame a window."""
    total: dict[str, Bounds] = {}
    for clip in seen:
        frames = len(clip.evidence)
        case = RefereeCase(np.zeros((8, 8, 3), np.uint8), np.zeros((frames, len(BUTTONS))), "")
        referee = CalibratedActions({"attack": Replayed(clip)}, {"attack": calibration})
        for name, bounds in referee.obeyed(np.zeros((frames, 8, 8, 3), np.uint8), case, 1).items():
            total[name] = total.get(name, Bounds()) + bounds
    return total


def test_a_telling_probe_may_speak() -> None:
    calibration = calibrate("attack", clips(4.0))
    assert calibration.usable, calibration.reason
    assert calibration.accuracy == pytest.approx(0.97, abs=0.04)
    assert calibration.real is not None
    assert calibration.real.low == pytest.approx(0.97, abs=0.05)
    said = obeyed(calibration, clips(4.0, seed=1))["attack"]
    assert said.low == pytest.approx(0.97, abs=0.04)
    assert said.total == 200, "every second window of 40 clips is commanded"
    frozen = obeyed(calibration, clips(0.0, seed=2))["attack"]
    assert frozen.low is not None
    assert frozen.low < 0.15


def test_a_blind_probe_is_withheld_with_the_reason() -> None:
    calibration = calibrate("attack", clips(0.3))
    assert not calibration.usable
    assert "balanced accuracy" in calibration.reason
    assert obeyed(calibration, clips(4.0)) == {}


def test_too_few_windows_are_withheld() -> None:
    calibration = calibrate("walk_left", clips(4.0, count=3))
    assert "are needed" in calibration.reason
    assert calibration.threshold is None


def test_unreadable_windows_are_counted_as_such() -> None:
    calibration = calibrate("attack", clips(4.0))
    blind = ProbedClip(0, (None, 5.0, 5.0), (True, True, False))
    assert obeyed(calibration, [blind]) == {"attack": Bounds(1, 0, 1)}


def test_windows() -> None:
    held = np.zeros((10, len(BUTTONS)))
    held[4:8, BUTTONS.index("A")] = 1
    found = windows_of(held, frames=9, window=4)
    assert [(w.start, w.end, sorted(w.buttons)) for w in found] == [(0, 4, []), (4, 8, ["A"]), (8, 9, [])]
    with pytest.raises(ValueError, match="expected"):
        windows_of(np.zeros((10, 3)), 9, 4)


def moving(shift_per_frame: int, frames: int = 10) -> np.ndarray:
    """A wide scene that drifts sideways."""
    wide = np.random.default_rng(0).integers(0, 256, (60, 400, 1)).repeat(3, axis=2)
    wide = np.kron(wide[:, ::4], np.ones((1, 4, 1)))
    return np.stack([wide[:, 100 + shift_per_frame * t : 300 + shift_per_frame * t] for t in range(frames)]).astype(
        np.uint8
    )


def test_probes_see_drift_and_motion() -> None:
    window = ActionWindow(0, 10, frozenset(("RIGHT",)))
    left, right = WalkProbe("LEFT"), WalkProbe("RIGHT")
    assert right.commanded(window)
    assert not left.commanded(window)
    assert right.evidence(moving(1), [window]) == (pytest.approx(9.0),)
    assert left.evidence(moving(1), [window]) == (pytest.approx(-9.0),)
    assert right.evidence(moving(0), [window]) == (pytest.approx(0.0),)
    still = np.concatenate([moving(0), moving(1, 4)])
    probe = MotionProbe()
    spans = [ActionWindow(0, 4, frozenset()), ActionWindow(10, 14, frozenset()), ActionWindow(3, 4, frozenset())]
    quiet, busy, short = probe.evidence(still, spans)
    assert quiet is not None
    assert busy is not None
    assert busy > quiet
    assert short is None
    assert probe.commanded(ActionWindow(0, 4, frozenset("A")))
    assert set(real_probes()) == {"attack", "walk_left", "walk_right"}
    assert probe_clip(probe, still, [ActionWindow(0, 4, frozenset("B"))], 7).commanded == (True,)
    with pytest.raises(ValueError, match="LEFT or RIGHT"):
        WalkProbe("UP")
