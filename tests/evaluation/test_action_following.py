"""Action following: windows, calibration that withholds, and what is then said."""

from __future__ import annotations

import numpy as np
import pytest

from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.evaluation.action_following import (
    ActionWindow,
    MotionProbe,
    ProbedClip,
    WalkProbe,
    calibrate,
    followed,
    probe_clip,
    real_probes,
    windows_of,
)


def clips(separation: float, count: int = 40, seed: int = 0) -> list[ProbedClip]:
    """Clips of 10 windows, every second commanded; evidence is noise plus `separation` where commanded."""
    rng = np.random.default_rng(seed)
    commanded = tuple(bool(k % 2) for k in range(10))
    return [
        ProbedClip(cluster, tuple(float(rng.normal() + separation * kind) for kind in commanded), commanded)
        for cluster in range(count)
    ]


def test_a_telling_probe_may_speak() -> None:
    calibration = calibrate("attack", clips(4.0))
    assert calibration.usable, calibration.reason
    assert calibration.accuracy == pytest.approx(0.97, abs=0.04)
    said = followed(calibration, clips(4.0, seed=1))
    assert said.obeyed is not None
    assert said.obeyed.low == pytest.approx(0.97, abs=0.04)
    frozen = followed(calibration, clips(0.0, seed=2))
    assert frozen.obeyed is not None
    assert frozen.obeyed.low < 0.15


def test_a_blind_probe_is_withheld_with_the_reason() -> None:
    calibration = calibrate("attack", clips(0.3))
    assert not calibration.usable
    said = followed(calibration, clips(4.0))
    assert said.obeyed is None
    assert "balanced accuracy" in said.reason


def test_too_few_windows_are_withheld() -> None:
    calibration = calibrate("walk_left", clips(4.0, count=3))
    assert "are needed" in calibration.reason
    assert calibration.threshold is None


def test_unreadable_windows_are_counted_as_such() -> None:
    calibration = calibrate("attack", clips(4.0))
    blind = ProbedClip(0, (None, 5.0, 5.0), (True, True, False))
    said = followed(calibration, [blind])
    assert said.obeyed is not None
    assert (said.obeyed.right, said.obeyed.wrong, said.obeyed.unreadable) == (1, 0, 1)


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
    drift = right.evidence(moving(1), window)
    assert drift is not None
    assert drift == -left.evidence(moving(1), window)  # type: ignore[operator]
    assert drift == pytest.approx(9.0)
    assert right.evidence(moving(0), window) == pytest.approx(0.0)
    still = np.concatenate([moving(0), moving(1, 4)])
    probe = MotionProbe()
    quiet, busy = (probe.evidence(still, ActionWindow(s, s + 4, frozenset())) for s in (0, 10))
    assert busy > quiet  # type: ignore[operator]
    assert probe.commanded(ActionWindow(0, 4, frozenset("A")))
    assert probe.evidence(still, ActionWindow(3, 4, frozenset())) is None
    assert set(real_probes()) == {"attack", "walk_left", "walk_right"}
    assert probe_clip(probe, still, [ActionWindow(0, 4, frozenset("B"))], 7).commanded == (True,)
    with pytest.raises(ValueError, match="LEFT or RIGHT"):
        WalkProbe("UP")
