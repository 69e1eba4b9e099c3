"""Visible state of the arena game: two fighters and a timer.

x is the body centre in pixels from the left edge, y the height of the feet above the floor; both are
always even, so that body edges fall on the 2x2 chroma grid of a yuv420p video.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena.moves import HP_MAX, METER_MAX, NONE
from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.errors import InputError

FPS = 20
FRAMES = 33
WINDOW_FRAMES = 4
WRITTEN_FRAMES = 36
"""Frames and action rows of a written clip: whole windows. Its first 33 frames are used, as 97 of 100 of the real data.

So the action bins of the 9 latent slots are exactly the windows.
"""
TIMER_FRAMES = 20
X_MIN = 10
X_MAX = 86
MIN_GAP = 16

STAND, CROUCH, AIR, DOWN = range(4)
STANCES = ("stand", "crouch", "air", "down")
SPARK_NONE, SPARK_HIT, SPARK_BLOCK = range(3)
SPARK_FRAMES = 3
NO_PROJECTILE = -1

BIT = {name: 1 << index for index, name in enumerate(BUTTONS)}
ATTACK_BITS = BIT["Y"] | BIT["X"] | BIT["Z"] | BIT["A"] | BIT["B"] | BIT["C"] | BIT["D"]


@dataclass(frozen=True)
class Glitches:
    """Faults of the engine, each independent; none of them shows in a condition.

    Args:
        hits_drain_nothing: The HP of both fighters is stuck.
        specials_cost_nothing: The meter of both fighters is stuck: no cost, no gain.
        special_without_meter: The special fires without meter instead of falling back.
    """

    hits_drain_nothing: bool = False
    specials_cost_nothing: bool = False
    special_without_meter: bool = False


NO_GLITCHES = Glitches()


@dataclass(frozen=True)
class FirstState:
    """All that a first frame shows: what a clip starts from.

    Args:
        x: Body centres of player 1 and 2, even, `X_MIN`..`X_MAX`, at least `MIN_GAP` apart.
        crouching: Whether each fighter crouches (else it stands idle).
        hp: 4..160 in steps of 4.
        meter: 0..80 in steps of 4.
        timer: Seconds on the clock, 0..99. A clip starts at the beginning of a second.
    """

    x: tuple[int, int]
    crouching: tuple[bool, bool]
    hp: tuple[int, int]
    meter: tuple[int, int]
    timer: int

    def __post_init__(self) -> None:
        legal = (
            all(X_MIN <= x <= X_MAX and x % 2 == 0 for x in self.x)
            and abs(self.x[0] - self.x[1]) >= MIN_GAP
            and all(4 <= hp <= HP_MAX and hp % 4 == 0 for hp in self.hp)
            and all(0 <= meter <= METER_MAX and meter % 4 == 0 for meter in self.meter)
            and 0 <= self.timer <= 99
        )
        if not legal:
            raise InputError(f"not a legal first state of arena: {self}", "read it from an engine's first frame")


class FighterFrame(NamedTuple):
    """What one frame records of a fighter; the renderer needs nothing else."""

    x: int
    y: int
    stance: int
    hp: int
    meter: int
    move: int
    move_frame: int
    stun: int
    guard: int
    down: int
    facing: int
    projectile_x: int
    spark: int


@dataclass(slots=True)
class Fighter:
    """Working state of one fighter; `facing` is +1 when the opponent is to the right."""

    x: int
    y: int
    stance: int
    hp: int
    meter: int
    facing: int
    move: int = NONE
    move_frame: int = 0
    connected: bool = False
    stun: int = 0
    guard: bool = False
    down: int = 0
    jump_frame: int = 0
    jump_dx: int = 0
    push: int = 0
    projectile_x: int = NO_PROJECTILE
    spark: int = SPARK_NONE
    spark_left: int = 0

    def frame(self) -> FighterFrame:
        """The visible part, as recorded in a trajectory."""
        return FighterFrame(
            self.x,
            self.y,
            self.stance,
            self.hp,
            self.meter,
            self.move,
            self.move_frame,
            self.stun,
            int(self.guard),
            self.down,
            self.facing,
            self.projectile_x,
            self.spark,
        )


@dataclass(slots=True)
class ArenaState:
    """Working state of a match: both fighters, the clock, and the frame number within the clip."""

    fighters: tuple[Fighter, Fighter]
    timer: int
    frame: int = 0

    @classmethod
    def start(cls, first: FirstState) -> ArenaState:
        """The state that a first frame shows."""
        right = 1 if first.x[1] > first.x[0] else -1
        fighters = tuple(
            Fighter(
                first.x[i],
                0,
                CROUCH if first.crouching[i] else STAND,
                first.hp[i],
                first.meter[i],
                right * sign,
            )
            for i, sign in ((0, 1), (1, -1))
        )
        return cls((fighters[0], fighters[1]), first.timer)

    @property
    def gap(self) -> int:
        """Distance of the body centres in pixels."""
        return abs(self.fighters[0].x - self.fighters[1].x)

    @property
    def over(self) -> bool:
        """Whether somebody is knocked out."""
        return self.fighters[0].hp == 0 or self.fighters[1].hp == 0

    def copy(self) -> ArenaState:
        """An independent copy."""
        return ArenaState((replace(self.fighters[0]), replace(self.fighters[1])), self.timer, self.frame)


FRAME_FIELDS = FighterFrame._fields
assert set(FRAME_FIELDS) <= {field.name for field in fields(Fighter)}


@dataclass(frozen=True)
class Event:
    """Something that happened on the way to frame `frame`.

    Args:
        frame: Frame that first shows it.
        kind: ``hit``, ``block``, ``special``, ``fallback`` or ``ko``.
        player: Who did it (0 or 1); for ``ko`` who won.
        move: Move id.
    """

    frame: int
    kind: str
    player: int
    move: int


@dataclass(frozen=True)
class Trajectory:
    """A simulated clip: everything visible, frame by frame (T frames, P = 2 players).

    Args:
        values_TPF: int16 [T, 2, fields], columns as in `FighterFrame`.
        timer_T: int16 [T], seconds.
        events: What happened, in order.
    """

    values_TPF: NDArray[np.int16]
    timer_T: NDArray[np.int16]
    events: tuple[Event, ...]

    def column(self, name: str) -> NDArray[np.int16]:
        """One field of both fighters: int16 [T, 2]."""
        column: NDArray[np.int16] = self.values_TPF[:, :, FRAME_FIELDS.index(name)]
        return column

    @property
    def hp(self) -> NDArray[np.int16]:
        """HP [T, 2]."""
        return self.column("hp")

    @property
    def meter(self) -> NDArray[np.int16]:
        """Meter [T, 2]."""
        return self.column("meter")


def button_masks(held_RK: NDArray[np.generic]) -> list[int]:
    """Held buttons [rows, 11] in {0, 1} as one bit mask a row (bit order of `BUTTONS`)."""
    if held_RK.ndim != 2 or held_RK.shape[1] != len(BUTTONS):
        raise InputError(f"buttons have shape {held_RK.shape}, not [rows, {len(BUTTONS)}]")
    weights = 1 << np.arange(len(BUTTONS), dtype=np.int64)
    masks: list[int] = ((np.asarray(held_RK) > 0).astype(np.int64) @ weights).tolist()
    return masks
