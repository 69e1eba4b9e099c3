"""Picture measures against values by hand."""

from __future__ import annotations

import numpy as np
import pytest

from stateplay_rl.evaluation.picture import measure_detail, measure_picture, picture_drift, psnr, ssim


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


def test_sharpness_and_flicker_by_hand() -> None:
    """A column step of 100 in a picture of two columns: 100 across, 0 down; half of that is the mean."""
    step = np.zeros((1, 4, 2, 3), np.uint8)
    step[:, :, 1] = 100
    assert measure_detail(step)["sharpness"] == pytest.approx(50.0, rel=1e-5)
    assert measure_detail(step)["flicker"] == 0.0
    ramp = measure_detail(flat((10, 10, 10), (20, 20, 20), (30, 30, 30)))
    assert ramp["flicker"] == pytest.approx(0.0, abs=1e-4)
    blink = measure_detail(flat((10, 10, 10), (30, 30, 30), (10, 10, 10)))
    assert blink["flicker"] == pytest.approx(40.0, rel=1e-5)
    with pytest.raises(ValueError, match="without frames"):
        measure_detail(np.zeros((0, 4, 4, 3), np.uint8))


def test_drift_counts_conditions_once_and_needs_both_sides() -> None:
    generated = {"a": [{"luma": 100.0}, {"luma": 120.0}], "b": [{"luma": 50.0}], "c": [{"luma": 1.0}], "d": []}
    real = {"a": {"luma": 100.0}, "b": {"luma": 100.0}, "d": {"luma": 9.0}}
    drift = picture_drift(generated, real)
    assert drift is not None
    assert (drift.conditions, drift.generated["luma"], drift.real["luma"]) == (2, 80.0, 100.0)
    assert drift.ratio["luma"] == pytest.approx(0.8)
    assert picture_drift(generated, {}) is None


def test_pixel_references() -> None:
    rng = np.random.default_rng(0)
    video = rng.integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    assert psnr(video, video) is None
    assert ssim(video, video) == pytest.approx(1.0)
    off = np.clip(video.astype(int) + 10, 0, 255).astype(np.uint8)
    assert psnr(flat((10, 10, 10)), flat((20, 20, 20))) == pytest.approx(20 * np.log10(255 / 10))
    other = rng.integers(0, 256, video.shape, dtype=np.uint8)
    assert ssim(video, off) > 0.9 > ssim(video, other)
    with pytest.raises(ValueError, match="cannot be compared"):
        psnr(video, video[:1])
    with pytest.raises(ValueError, match="at least 8"):
        ssim(video[:, :4], video[:, :4])
