"""Hand-made situations for the arena tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena.game import simulate_first
from stateplay_rl.arena.state import FRAMES, NO_GLITCHES, FirstState, Glitches, Trajectory
from stateplay_rl.config.buttons import BUTTONS


def held(plan: dict[int, str], rows: int = FRAMES) -> NDArray[np.uint8]:
    """Buttons [rows, 11]: window number -> names joined by '+', each held for 4 rows."""
    buttons = np.zeros((rows, len(BUTTONS)), np.uint8)
    for window, names in plan.items():
        for name in names.split("+"):
            buttons[4 * window : 4 * window + 4, BUTTONS.index(name)] = 1
    return buttons


def first(
    x: tuple[int, int] = (40, 58),
    hp: tuple[int, int] = (160, 160),
    meter: tuple[int, int] = (40, 0),
    crouching: tuple[bool, bool] = (False, False),
    timer: int = 60,
) -> FirstState:
    """A first state; by default player 1 has meter for one special and stands at arm's length."""
    return FirstState(x, crouching, hp, meter, timer)


def play(
    plan: dict[int, str],
    start: FirstState | None = None,
    strategy: str = "Passive Guarding",
    glitches: Glitches = NO_GLITCHES,
) -> Trajectory:
    """A clip of a hand-made situation."""
    return simulate_first(start or first(), held(plan), strategy, glitches)
