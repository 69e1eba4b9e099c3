"""Reading pixels: the engine's own pictures without error, broken ones with a verdict."""

from __future__ import annotations

import numpy as np
import pytest

from stateplay_rl.arena.calibrate import through_mp4
from stateplay_rl.arena.dataset import draw_conditions, render, simulate
from stateplay_rl.arena.pixels import read_first_state, read_timer, read_video, true_reading
from stateplay_rl.errors import InputError
from tests.arena.helpers import first, play


def assert_exact(video: np.ndarray, truth) -> None:
    seen, true = read_video(video), true_reading(truth)
    assert np.array_equal(np.round(seen.hp_TP), true.hp_TP)
    assert np.array_equal(np.round(seen.meter_TP), true.meter_TP)
    assert np.array_equal(2 * np.round(seen.x_TP / 2), true.x_TP)
    assert np.abs(seen.height_TP - true.height_TP).max() < 1.0
    assert np.array_equal(seen.stance_TP, true.stance_TP)
    assert seen.readable.all()


def test_own_renderings_are_read_without_error() -> None:
    for condition in draw_conditions(150, 21):
        truth = simulate(condition)
        video = render(truth)
        assert_exact(video, truth)
        assert read_first_state(video[0]) == condition.first


def test_own_renderings_are_read_without_error_after_mp4() -> None:
    for condition in draw_conditions(15, 22):
        truth = simulate(condition)
        video = through_mp4(render(truth))
        assert_exact(video, truth)
        assert read_first_state(video[0]) == condition.first


@pytest.mark.slow
def test_thousands_of_clips_are_read_without_error() -> None:
    for condition in draw_conditions(3000, 23):
        truth = simulate(condition)
        video = render(truth)
        if condition.index % 4 == 0:
            video = through_mp4(video)
        assert_exact(video, truth)
        assert read_first_state(video[0]) == condition.first


def test_noise_and_loss_of_contrast_do_not_change_a_reading() -> None:
    rng = np.random.default_rng(0)
    truth = play({0: "A", 2: "B", 6: "D"})
    video = render(truth).astype(np.float64)
    for changed in (video + rng.normal(0, 15, video.shape), 128 + (video - 128) * 0.85, video + 8):
        assert_exact(np.clip(np.round(changed), 0, 255).astype(np.uint8), truth)


@pytest.mark.parametrize("timer", [0, 9, 10, 37, 48, 56, 99])
def test_the_clock_is_read(timer: int) -> None:
    assert read_timer(render(play({}, first(timer=timer)))[0]) == timer


def test_broken_pictures_are_unreadable() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (33, 64, 96, 3)).astype(np.uint8)
    grey = np.full((33, 64, 96, 3), 128, np.uint8)
    without_body = render(play({}))
    without_body[:, 14:] = without_body[:, 14:15, :1]
    for video in (noise, grey, without_body):
        assert not read_video(video).readable.any()
    with pytest.raises(InputError, match="cannot be read"):
        read_first_state(noise[0])


def test_a_frame_in_mid_air_is_no_first_frame() -> None:
    frames = render(play({0: "UP"}))
    with pytest.raises(InputError, match="on the ground"):
        read_first_state(frames[4])


def test_other_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="not arena pictures"):
        read_video(np.zeros((33, 48, 96, 3), np.uint8))
