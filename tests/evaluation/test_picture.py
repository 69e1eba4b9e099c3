"""Picture measures against values by hand."""

from __future__ import annotations

import numpy as np
import pytest

from stateplay_rl.evaluation.picture import measure_picture


def flat(*colours: tuple[int, int, int]) -> np.ndarray:
    """One plain 4x6 picture per colour."""
    return np.stack([np.full((4, 6, 3), colour, np.uint8) for colour in colours])


def test_values_by_hand() -> None:
    """Red 255: luma 0.299 x 255 = 76.245, saturation 255; grey 100: luma 100, saturation 0."""
    found = measure_picture(flat((255, 0, 0), (100, 100, 100)))
    assert found["luma"] == pytest.approx((76.245 + 100) / 2, rel=1e-5)
    assert found["saturation"] == pytest.approx(127.5)
    assert found["motion"] == pytest.approx(100 - 76.245, rel=1e-5)


def test_motion_is_per_step_and_has_no_sign() -> None:
    up_and_down = measure_picture(flat((10, 10, 10), (30, 30, 30), (10, 10, 10)))
    assert up_and_down["motion"] == pytest.approx(20.0, rel=1e-5)
    assert measure_picture(flat((9, 9, 9), (9, 9, 9)))["motion"] == 0.0
    assert measure_picture(flat((9, 9, 9)))["motion"] == 0.0


def test_the_usual_cheats_show() -> None:
    frames = np.random.default_rng(0).integers(0, 200, (8, 16, 16, 3), np.uint8)
    plain = measure_picture(frames)
    assert measure_picture(np.repeat(frames[:1], 8, axis=0))["motion"] == 0.0
    assert measure_picture(np.minimum(frames.astype(int) + 60, 255).astype(np.uint8))["luma"] > plain["luma"] + 50
    grey = np.repeat(frames.mean(axis=-1, keepdims=True).astype(np.uint8), 3, axis=-1)
    assert measure_picture(grey)["saturation"] == 0.0 < plain["saturation"]


def test_light_and_dark_never_wrap_around() -> None:
    """uint8 differences would make 250 -> 5 a motion of 11."""
    assert measure_picture(flat((250, 250, 250), (5, 5, 5)))["motion"] == pytest.approx(245.0, rel=1e-5)
