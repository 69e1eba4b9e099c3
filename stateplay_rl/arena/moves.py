"""Move table of the arena game: frame data, reach, damage and meter, all integers.

HP and meter change in multiples of 4 only, because one pixel of a bar shows 4 points.
Lengths are in pixels, times in frames at 20 fps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HP_MAX = 160
METER_MAX = 80
SPECIAL_COST = 40
CHIP_DAMAGE = 8
METER_FOR_BLOCKED = 4
METER_FOR_TAKEN = 8
BLOCK_STUN_FRAMES = 4
BLOCK_PUSH_FRAMES = 2
DOWN_FRAMES = 14
RISE_FRAMES = 3
DOWN_PUSH_FRAMES = 6

Level = Literal["high", "mid", "overhead", "low", "throw"]

NONE, JAB, STRONG, OVERHEAD, LOW_KICK, SWEEP, THROW, SPECIAL, JUMP_KICK = range(9)


@dataclass(frozen=True)
class Move:
    """Frame data of one attack.

    Args:
        name: Name as used in prompts.
        level: ``high`` passes over crouchers, ``mid`` is guarded standing or crouching, ``overhead`` only
            standing, ``low`` only crouching, ``throw`` not at all.
        startup: Frames before the attack can hit.
        active: Frames in which it can hit.
        recovery: Frames after that, in which the fighter can do nothing.
        reach: Largest distance of body centres at which it hits, pixels.
        damage: HP that a hit drains.
        meter: Meter that a hit gives the attacker.
        stun: Frames of hit-stun.
        push: Frames of knock-back, 2 pixels each.
        knockdown: A hit sends the victim to the floor.
    """

    name: str
    level: Level
    startup: int
    active: int
    recovery: int
    reach: int
    damage: int
    meter: int
    stun: int
    push: int
    knockdown: bool = False

    @property
    def frames(self) -> int:
        """Length of the whole move in frames."""
        return self.startup + self.active + self.recovery


MOVES: dict[int, Move] = {
    JAB: Move("Jab", "high", 2, 2, 4, 22, 16, 8, 6, 2),
    STRONG: Move("Strong Punch", "mid", 4, 2, 6, 26, 36, 16, 8, 4),
    OVERHEAD: Move("Overhead Chop", "overhead", 6, 2, 4, 24, 28, 16, 8, 2),
    LOW_KICK: Move("Low Kick", "low", 2, 2, 4, 24, 16, 8, 6, 2),
    SWEEP: Move("Sweep", "low", 4, 2, 6, 28, 28, 12, 0, 0, knockdown=True),
    THROW: Move("Throw", "throw", 2, 2, 8, 20, 40, 16, 0, 0, knockdown=True),
    # The special hits through its projectile: its reach is only used to warn a guarding opponent.
    SPECIAL: Move("Fire Orb", "mid", 4, 2, 6, 28, 60, 0, 0, 0, knockdown=True),
    JUMP_KICK: Move("Jump Kick", "overhead", 2, 14, 0, 22, 24, 12, 8, 2),
}

# Without meter the special's button falls back to this move (the data's `macro_fail`).
SPECIAL_FALLBACK = STRONG

# Highest victim (pixels above the floor) that a level still hits.
REACHABLE_HEIGHT: dict[Level, int] = {"high": 12, "mid": 12, "overhead": 14, "low": 4, "throw": 0}

PROJECTILE_SPEED = 6
PROJECTILE_HALF_WIDTH = 8
PROJECTILE_HEIGHT_LIMIT = 8
