"""Arena's engine says which commands are obeyed; a video must show it."""

from __future__ import annotations

import numpy as np
import pytest

from stateplay_rl.arena.actions_seen import ArenaActions
from stateplay_rl.arena.dataset import draw_conditions, render, simulate
from stateplay_rl.arena.state import WINDOW_FRAMES
from stateplay_rl.evaluation.intervals import Bounds
from tests.arena.test_hud_referee import case_of

CONDITIONS = draw_conditions(24, 5)
NAMES = ("walk_left", "walk_right", "crouch", "jump")


def total(shown: str) -> dict[str, Bounds]:
    """Over all conditions: `true` clips, `frozen` ones, or `noise`."""
    referee, found = ArenaActions(), dict.fromkeys(NAMES, Bounds())
    for condition in CONDITIONS:
        video = render(simulate(condition))
        if shown == "frozen":
            video = np.repeat(video[:1], len(video), axis=0)
        if shown == "noise":
            video = np.random.default_rng(0).integers(0, 256, video.shape, dtype=np.uint8)
        for name, bounds in referee.obeyed(video, case_of(condition), WINDOW_FRAMES).items():
            found[name] += bounds
    return found


def test_the_engines_own_clips_obey_every_command_that_counts() -> None:
    found = total("true")
    assert all(found[name].total > 5 for name in NAMES), found
    assert all(found[name].low == 1.0 for name in NAMES), found


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_video_obeys_nothing_that_it_does_not_happen_to_show(name: str) -> None:
    found = total("frozen")[name]
    assert found.low is not None
    # A fighter that crouches in the first frame crouches for ever.
    assert found.low <= (0.8 if name == "crouch" else 0.0)


def test_noise_is_unreadable_and_not_disobedient() -> None:
    found = total("noise")
    assert all(bounds.right + bounds.wrong == 0 < bounds.unreadable for bounds in found.values()), found
