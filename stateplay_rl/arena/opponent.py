"""The scripted opponent: six strategies, each a pure function of (strategy, state, frame number).

The prompt names the strategy, so the text decides what player 2 does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stateplay_rl.arena.moves import MOVES, NONE
from stateplay_rl.arena.state import AIR, BIT, CROUCH, NO_PROJECTILE, ArenaState, Fighter

THREAT_MARGIN = 12
PROJECTILE_THREAT = 26


def threatened(victim: Fighter, attacker: Fighter) -> bool:
    """Whether `attacker` is about to hit `victim`: only then does holding away mean guarding."""
    gap = abs(victim.x - attacker.x)
    if attacker.projectile_x != NO_PROJECTILE and abs(attacker.projectile_x - victim.x) <= PROJECTILE_THREAT:
        return True
    if attacker.move == NONE:
        return False
    move = MOVES[attacker.move]
    return attacker.move_frame < move.startup + move.active and gap <= move.reach + THREAT_MARGIN


def _toward(me: Fighter) -> int:
    return BIT["RIGHT"] if me.facing > 0 else BIT["LEFT"]


def _away(me: Fighter) -> int:
    return BIT["LEFT"] if me.facing > 0 else BIT["RIGHT"]


def _passive_guarding(me: Fighter, other: Fighter, state: ArenaState) -> int:
    keep = BIT["DOWN"] if me.stance == CROUCH else 0
    return keep | (_away(me) if threatened(me, other) else 0)


def _relentless_rushdown(me: Fighter, other: Fighter, state: ArenaState) -> int:
    if state.gap > 22:
        return _toward(me)
    return (BIT["Y"], BIT["A"], BIT["X"])[(state.frame // 8) % 3]


def _close_grappling(me: Fighter, other: Fighter, state: ArenaState) -> int:
    if other.projectile_x != NO_PROJECTILE and threatened(me, other):
        return BIT["UP"] | _toward(me)
    return BIT["C"] if state.gap <= 20 else _toward(me)


def _projectile_zoning(me: Fighter, other: Fighter, state: ArenaState) -> int:
    if state.gap >= 32:
        return BIT["D"] if state.frame % 16 < 12 else 0
    return BIT["B"] if state.frame % 16 < 8 else _away(me)


def _whiff_punishing(me: Fighter, other: Fighter, state: ArenaState) -> int:
    if other.move != NONE and other.move_frame >= MOVES[other.move].startup and state.gap <= 28:
        return BIT["B"]
    if threatened(me, other):
        low = other.move != NONE and MOVES[other.move].level == "low"
        return _away(me) | (BIT["DOWN"] if low else 0)
    return _toward(me) if state.gap > 28 else 0


def _evasive_hopping(me: Fighter, other: Fighter, state: ArenaState) -> int:
    if me.stance == AIR:
        return BIT["X"] if state.gap <= 30 else 0
    if state.frame % 20 < 8:
        return BIT["UP"] | (_toward(me) if state.gap > 24 else _away(me))
    return BIT["DOWN"]


@dataclass(frozen=True)
class Strategy:
    """A strategy of the opponent.

    Args:
        name: Name in the prompt.
        description: Its sentence in the prompt.
        category: The data's strategy class of the opponent.
        decide: (me, other, state) -> held buttons as a bit mask.
    """

    name: str
    description: str
    category: str
    decide: Callable[[Fighter, Fighter, ArenaState], int]

    @property
    def text(self) -> str:
        """``name: description``, as in the data's `strategy` column."""
        return f"{self.name}: {self.description}"


STRATEGIES: tuple[Strategy, ...] = (
    Strategy(
        "Passive Guarding",
        "Remains stationary and keeps its stance while blocking incoming attacks.",
        "Defense",
        _passive_guarding,
    ),
    Strategy(
        "Relentless Rushdown",
        "Walks in and attacks without pause at close range.",
        "Offense",
        _relentless_rushdown,
    ),
    Strategy(
        "Close Grappling",
        "Closes the distance to grab and throw.",
        "Offense",
        _close_grappling,
    ),
    Strategy(
        "Projectile Zoning",
        "Fires orbs from far away and sweeps at close range.",
        "Control",
        _projectile_zoning,
    ),
    Strategy(
        "Whiff Punishing",
        "Blocks and sweeps the opponent during attacks that leave an opening.",
        "Control",
        _whiff_punishing,
    ),
    Strategy(
        "Evasive Hopping",
        "Jumps around and kicks from the air, then crouches.",
        "Evasion",
        _evasive_hopping,
    ),
)
STRATEGY_BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}


def opponent_buttons(strategy: Strategy, state: ArenaState) -> int:
    """Buttons that player 2 holds on the way to the next frame, as a bit mask."""
    return strategy.decide(state.fighters[1], state.fighters[0], state)
