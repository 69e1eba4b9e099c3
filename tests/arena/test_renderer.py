"""The picture: size, bars to the pixel, poses that differ, glitches that do not show in frame 0."""

from __future__ import annotations

import numpy as np

from stateplay_rl.arena import layout as lay
from stateplay_rl.arena.dataset import draw_conditions, render, simulate
from stateplay_rl.arena.state import Glitches
from tests.arena.helpers import first, play


def test_size_and_type() -> None:
    frames = render(play({}))
    assert frames.shape == (33, 64, 96, 3)
    assert frames.dtype == np.uint8
    assert frames.flags["C_CONTIGUOUS"]


def test_bars_show_one_pixel_per_four_points_anchored_as_documented() -> None:
    frame = render(play({}, first(hp=(100, 60), meter=(28, 52))))[0]
    rows = [frame[lay.HP_BARS[0].top + 1], frame[lay.METER_BARS[0].top + 1]]
    hp = [(rows[0][bar.left : bar.left + 40] == lay.HP_FULL).all(axis=1) for bar in lay.HP_BARS]
    meter = [(rows[1][bar.left : bar.left + 20] == lay.METER_FULL).all(axis=1) for bar in lay.METER_BARS]
    assert hp[0].tolist() == [False] * 15 + [True] * 25
    assert hp[1].tolist() == [True] * 15 + [False] * 25
    assert meter[0].tolist() == [True] * 7 + [False] * 13
    assert meter[1].tolist() == [False] * 7 + [True] * 13


def test_a_move_shows_its_phases() -> None:
    frames = render(play({0: "X"}, first(x=(20, 80))))
    startup, active, recovery = frames[2], frames[5], frames[8]
    assert (startup != active).any()
    assert (active != recovery).any()
    assert np.array_equal(frames[1], startup)


def test_the_clock_is_drawn() -> None:
    frames = render(play({}))
    assert np.array_equal(frames[0], frames[19])
    assert (frames[19] != frames[20]).any()


def test_no_glitch_shows_in_the_first_frame() -> None:
    for condition in draw_conditions(20, 7):
        true = render(simulate(condition))[0]
        twin = render(simulate(condition, Glitches(True, True, True)))[0]
        assert np.array_equal(true, twin)
