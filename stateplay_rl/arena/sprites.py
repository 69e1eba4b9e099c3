"""Pre-rendered sprites: fighters in every pose and both directions, projectiles, sparks.

A sprite is drawn once in pose space (x forward, y up from the feet) and kept as colour plus mask.
Torso and head lie in a layer of their own above all limbs, so that no limb ever hides a torso from the
referee.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from stateplay_rl.arena.canvas import OUTLINE, Canvas, Sprite
from stateplay_rl.arena.layout import FIST, HAIR, SKIN, TORSO_BOXES, TORSOS, TROUSERS, Colour
from stateplay_rl.arena.moves import (
    JAB,
    JUMP_KICK,
    LOW_KICK,
    MOVES,
    NONE,
    OVERHEAD,
    RISE_FRAMES,
    SPECIAL,
    STRONG,
    SWEEP,
    THROW,
)
from stateplay_rl.arena.state import AIR, CROUCH, DOWN, FighterFrame

GLOW: Colour = (255, 244, 180)
SHIELD: Colour = (196, 244, 236)
STREAK: Colour = (250, 246, 226)

Pose = tuple[str, int]


@dataclass(frozen=True)
class FighterSprites:
    """The two layers of a pose."""

    limbs: Sprite
    core: Sprite


def _stand_legs(c: Canvas, player: int, spread: int = 4) -> None:
    trousers = TROUSERS[player]
    c.limb((-2, 9), (-spread, 1), trousers, 4)
    c.limb((1, 9), (spread, 1), trousers, 4)


def _crouch_legs(c: Canvas, player: int) -> None:
    trousers = TROUSERS[player]
    for side in (-1, 1):
        c.limb((side * 2, 6), (side * 6, 5), trousers, 4)
        c.limb((side * 6, 5), (side * 5, 1), trousers, 3)


def _arm(c: Canvas, player: int, elbow: tuple[int, int], hand: tuple[int, int], shoulder: int) -> None:
    """An arm of two pieces and a 4x4 glove."""
    c.limb((2, shoulder), elbow, SKIN, 3)
    c.limb(elbow, hand, SKIN, 3)
    c.box(hand[0] - 2, hand[0] + 2, hand[1] - 2, hand[1] + 2, FIST[player])


def _idle(c: Canvas, player: int, _phase: int) -> None:
    _stand_legs(c, player)
    _arm(c, player, (6, 13), (9, 17), 16)


def _walk(c: Canvas, player: int, phase: int) -> None:
    _stand_legs(c, player, 6 if phase else 2)
    _arm(c, player, (6, 13), (9, 16), 16)


def _crouch(c: Canvas, player: int, _phase: int) -> None:
    _crouch_legs(c, player)
    _arm(c, player, (6, 8), (9, 11), 11)


def _guard(c: Canvas, player: int, phase: int) -> None:
    crouching = phase == 1
    (_crouch_legs if crouching else _stand_legs)(c, player)
    low = 4 if crouching else 9
    _arm(c, player, (6, low + 2), (6, low + 9), low + 4)
    for dx, bottom, top in ((9, 2, 14), (8, 0, 3), (8, 13, 16)):
        c.box(dx, dx + 2, low + bottom - 2, low + top - 2, SHIELD)


def _stunned(c: Canvas, player: int, phase: int) -> None:
    crouching = phase == 1
    (_crouch_legs if crouching else _stand_legs)(c, player)
    shoulder = 11 if crouching else 17
    _arm(c, player, (6, shoulder + 1), (9, shoulder + 4), shoulder)
    c.limb((-3, shoulder), (-8, shoulder + 2), SKIN, 3)


def _jump(c: Canvas, player: int, _phase: int) -> None:
    trousers = TROUSERS[player]
    c.limb((-2, 9), (-5, 6), trousers, 4)
    c.limb((2, 9), (5, 6), trousers, 4)
    _arm(c, player, (6, 17), (8, 21), 17)
    c.limb((-3, 17), (-7, 20), SKIN, 3)


def _down(c: Canvas, player: int, _phase: int) -> None:
    c.limb((8, 2), (16, 2), TROUSERS[player], 4)
    c.limb((-2, 5), (3, 7), SKIN, 3)


def _victory(c: Canvas, player: int, _phase: int) -> None:
    _stand_legs(c, player)
    for side in (-1, 1):
        c.limb((side * 4, 18), (side * 8, 25), SKIN, 3)
        c.box(side * 8 - 2, side * 8 + 2, 25, 29, FIST[player])


def _punch(c: Canvas, player: int, phase: int, reach: int, height: int, thick: bool) -> None:
    _stand_legs(c, player, 6)
    if phase == 0:
        c.limb((-2, height), (-7, height - 2), SKIN, 3)
        c.box(-10, -6, height - 4, height, FIST[player])
        return
    tip = reach - 6 if phase == 1 else reach // 2
    c.limb((3, height), (tip - 2, height), SKIN, 4 if thick else 3)
    half = 3 if thick else 2
    c.box(tip - half, tip + half, height - half, height + half, FIST[player])
    if phase == 1 and thick:
        for row in (height + 4, height - 5):
            c.box(6, tip - 2, row, row + 1, STREAK)


def _jab(c: Canvas, player: int, phase: int) -> None:
    _punch(c, player, phase, MOVES[JAB].reach, 17, thick=False)


def _strong(c: Canvas, player: int, phase: int) -> None:
    _punch(c, player, phase, MOVES[STRONG].reach, 15, thick=True)


def _overhead(c: Canvas, player: int, phase: int) -> None:
    _stand_legs(c, player, 5)
    if phase == 0:
        _arm(c, player, (2, 24), (-2, 29), 17)
        return
    tip = MOVES[OVERHEAD].reach - 7
    if phase == 1:
        for x, y in ((4, 29), (8, 28), (12, 25), (15, 21)):
            c.box(x, x + 4, y - 1, y + 1, STREAK)
        _arm(c, player, (9, 18), (tip, 13), 17)
    else:
        _arm(c, player, (6, 14), (10, 9), 16)


def _low_kick(c: Canvas, player: int, phase: int) -> None:
    _kick(c, player, phase, MOVES[LOW_KICK].reach, sweep=False)


def _sweep(c: Canvas, player: int, phase: int) -> None:
    _kick(c, player, phase, MOVES[SWEEP].reach, sweep=True)


def _kick(c: Canvas, player: int, phase: int, reach: int, sweep: bool) -> None:
    trousers = TROUSERS[player]
    c.limb((-2, 6), (-6, 5), trousers, 4)
    c.limb((-6, 5), (-5, 1), trousers, 3)
    tip = (7, reach - 6, reach // 2)[phase]
    c.limb((2, 5), (tip, 2), trousers, 4)
    c.box(tip - 1, tip + 3, 0, 4, FIST[player])
    _arm(c, player, (-6, 9), (-8, 13), 11)
    if sweep and phase == 1:
        c.box(4, tip - 4, -1, 0, STREAK)
        c.box(8, tip, 6, 7, STREAK)


def _throw(c: Canvas, player: int, phase: int) -> None:
    _stand_legs(c, player, 6)
    if phase == 0:
        _arm(c, player, (7, 12), (8, 15), 16)
        return
    tip = MOVES[THROW].reach - 6 if phase == 1 else 8
    for height in (18, 12):
        c.limb((3, height), (tip, height), SKIN, 3)
        c.box(tip - 1, tip + 3, height - 2, height + 2, FIST[player])


def _special(c: Canvas, player: int, phase: int) -> None:
    _stand_legs(c, player, 6)
    if phase == 0:
        c.limb((2, 15), (-6, 11), SKIN, 3)
        c.box(-11, -5, 8, 14, GLOW)
        c.box(-13, -3, 10, 12, GLOW)
        return
    for height in (16, 13):
        c.limb((3, height), (10, 14), SKIN, 3)
    c.box(9, 13, 12, 17, FIST[player])


def _jump_kick(c: Canvas, player: int, phase: int) -> None:
    trousers = TROUSERS[player]
    c.limb((-2, 9), (-5, 7), trousers, 4)
    tip = 8 if phase == 0 else MOVES[JUMP_KICK].reach - 7
    c.limb((2, 9), (tip, 5), trousers, 4)
    c.box(tip, tip + 4, 3, 7, FIST[player])
    c.limb((-3, 17), (-8, 19), SKIN, 3)


_LIMBS: dict[str, Callable[[Canvas, int, int], None]] = {
    "idle": _idle,
    "walk": _walk,
    "crouch": _crouch,
    "guard": _guard,
    "stunned": _stunned,
    "jump": _jump,
    "down": _down,
    "victory": _victory,
    "jab": _jab,
    "strong": _strong,
    "overhead": _overhead,
    "low_kick": _low_kick,
    "sweep": _sweep,
    "throw": _throw,
    "special": _special,
    "jump_kick": _jump_kick,
}
_MOVE_POSES = {
    JAB: "jab",
    STRONG: "strong",
    OVERHEAD: "overhead",
    LOW_KICK: "low_kick",
    SWEEP: "sweep",
    THROW: "throw",
    SPECIAL: "special",
    JUMP_KICK: "jump_kick",
}


def pose_of(now: FighterFrame, won: bool) -> Pose:
    """Name and phase of the pose that a frame shows."""
    if now.stance == DOWN:
        return "down", 0
    crouching = int(now.stance == CROUCH)
    if now.move != NONE:
        move = MOVES[now.move]
        active = now.move_frame >= move.startup
        return _MOVE_POSES[now.move], 0 if not active else 1 + (now.move_frame >= move.startup + move.active)
    if 0 < now.down <= RISE_FRAMES:
        return "crouch", 0
    if now.guard:
        return "guard", crouching
    if now.stun:
        return "stunned", crouching
    if now.stance == AIR:
        return "jump", 0
    if won:
        return "victory", 0
    if crouching:
        return "crouch", 0
    # The stride follows the position, so that a first frame shows it and nothing else decides it.
    return "walk" if now.x // 2 % 2 else "idle", now.x // 4 % 2


def _core(c: Canvas, player: int, stance: int, pose: Pose) -> None:
    half, bottom, top = TORSO_BOXES[stance]
    if stance == DOWN:
        c.box(-14, -8, 0, 6, SKIN)
        c.box(-16, -14, 0, 6, HAIR[player])
    else:
        lean = {"stunned": -2, "guard": -1}.get(pose[0], 0)
        c.box(lean - 3, lean + 3, top, top + 6, SKIN)
        c.box(lean - 3, lean + 3, top + 4, top + 7, HAIR[player])
        c.box(lean - 4, lean - 2, top + 2, top + 6, HAIR[player])
        c.box(lean + 1, lean + 2, top + 2, top + 3, OUTLINE)
    c.box(-half, half, bottom, top, TORSOS[player])


@cache
def fighter_sprites(player: int, facing: int, stance: int, pose: Pose) -> FighterSprites:
    """Both layers of a pose, drawn once."""
    limbs, core = Canvas(), Canvas()
    _LIMBS[pose[0]](limbs, player, pose[1])
    limbs.outline()
    _core(core, player, stance, pose)
    core.outline()
    return FighterSprites(limbs.sprite(facing), core.sprite(facing))


@cache
def projectile_sprite(facing: int) -> Sprite:
    """A glowing orb with a tail; its y is the pose space of a fighter on the floor."""
    c = Canvas()
    for half, inner, colour in ((5, 2, (244, 168, 60)), (4, 3, GLOW), (2, 1, (255, 255, 250))):
        c.box(-half, half, 15 - inner, 15 + inner, colour)
        c.box(-inner, inner, 15 - half, 15 + half, colour)
    c.box(-12, -5, 14, 16, (244, 168, 60))
    c.box(-9, -5, 12, 18, (244, 168, 60))
    return c.sprite(facing)


@cache
def spark_sprite(blocked: bool) -> Sprite:
    """A star for a hit, a ring for a block, centred at chest height of a standing body."""
    c = Canvas()
    if blocked:
        for half, inner in ((6, 2), (4, 4), (2, 6)):
            c.box(-half, half, 15 - inner, 15 + inner, SHIELD)
        return c.sprite(1)
    c.limb((-7, 8), (7, 22), (255, 232, 96), 3)
    c.limb((-7, 22), (7, 8), (255, 232, 96), 3)
    c.box(-10, 10, 14, 16, (255, 232, 96))
    c.box(-1, 1, 5, 25, (255, 232, 96))
    c.box(-4, 4, 11, 19, (255, 255, 240))
    return c.sprite(1)
