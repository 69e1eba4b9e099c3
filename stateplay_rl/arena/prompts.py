"""Prompts in the style of the real data: what the opponent does, what happens to it, its strategy.

The behaviours are those of the true engine, also for glitched clips: a prompt shows no glitch.
"""

from __future__ import annotations

import re
from itertools import pairwise

from stateplay_rl.arena.moves import JAB, JUMP_KICK, LOW_KICK, NONE, OVERHEAD, SPECIAL, STRONG, SWEEP, THROW
from stateplay_rl.arena.opponent import STRATEGIES, STRATEGY_BY_NAME, Strategy
from stateplay_rl.arena.state import AIR, CROUCH, DOWN, FighterFrame, Trajectory
from stateplay_rl.errors import InputError

# Two of each kind keep the text short enough for a small text encoder.
MAX_BEHAVIOURS = 2

ACTIVE: dict[str, str] = {
    "Walk Left": "Moves to the left on the ground.",
    "Walk Right": "Moves to the right on the ground.",
    "Jump": "Leaps into the air.",
    "Crouch": "Lowers its stance to the ground.",
    "Jab": "A quick high punch.",
    "Strong Punch": "A slow heavy punch.",
    "Overhead Chop": "A strike from above.",
    "Low Kick": "A quick kick at the legs.",
    "Sweep": "A low kick that knocks down.",
    "Throw": "A close grab that cannot be blocked.",
    "Fire Orb": "A special projectile that costs meter.",
    "Jump Kick": "A kick from the air.",
}
PASSIVE: dict[str, str] = {
    "Idle": "A neutral stance without action.",
    "Standing Block": "Guards while standing.",
    "Crouching Block": "Guards while crouching.",
    "Take Hit": "Suffers damage from a strike.",
    "Knockdown": "Falls heavily to the ground.",
    "Wake Up": "Gets back on its feet.",
}
_MOVE_NAMES = {
    JAB: "Jab",
    STRONG: "Strong Punch",
    OVERHEAD: "Overhead Chop",
    LOW_KICK: "Low Kick",
    SWEEP: "Sweep",
    THROW: "Throw",
    SPECIAL: "Fire Orb",
    JUMP_KICK: "Jump Kick",
}


def _active(now: FighterFrame, before: FighterFrame) -> str | None:
    if now.move != NONE:
        return _MOVE_NAMES[now.move]
    if now.stun or now.down or now.guard:
        return None
    if now.stance == AIR:
        return "Jump"
    if now.stance == CROUCH:
        return "Crouch"
    if now.x != before.x:
        return "Walk Right" if now.x > before.x else "Walk Left"
    return None


def _passive(now: FighterFrame) -> str | None:
    if now.stance == DOWN:
        return "Knockdown"
    if now.down:
        return "Wake Up"
    if now.guard:
        return "Crouching Block" if now.stance == CROUCH else "Standing Block"
    if now.stun:
        return "Take Hit"
    if now.move == NONE and now.stance not in (AIR, CROUCH):
        return "Idle"
    return None


def behaviours(trajectory: Trajectory) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Active and passive behaviours of player 2, in order of appearance, at most two of each."""
    rows = [FighterFrame(*(int(v) for v in row)) for row in trajectory.values_TPF[:, 1]]
    active: dict[str, None] = {}
    passive: dict[str, None] = {}
    for before, now in pairwise(rows):
        done, suffered = _active(now, before), _passive(now)
        if done is not None:
            active[done] = None
        if suffered is not None:
            passive[suffered] = None
    return tuple(active)[:MAX_BEHAVIOURS], tuple(passive)[:MAX_BEHAVIOURS]


def _listed(names: tuple[str, ...], texts: dict[str, str]) -> str:
    return "; ".join(f"{name}: {texts[name]}" for name in names) or "N/A"


def write_prompt(strategy: Strategy, true_trajectory: Trajectory) -> str:
    """The prompt of a clip: ``NPC: Active_Behavior(...), Passive_Behavior(...), Strategy(...)``."""
    active, passive = behaviours(true_trajectory)
    return (
        f"NPC: Active_Behavior({_listed(active, ACTIVE)}), "
        f"Passive_Behavior({_listed(passive, PASSIVE)}), Strategy({strategy.text})"
    )


def read_strategy(prompt: str) -> Strategy:
    """The strategy that a prompt names.

    Raises:
        InputError: the prompt names none of the arena's strategies.
    """
    found = re.search(r"Strategy\(([^:()]+):", prompt)
    name = found.group(1).strip() if found else ""
    if name not in STRATEGY_BY_NAME:
        known = ", ".join(strategy.name for strategy in STRATEGIES)
        raise InputError(f"the prompt names no arena strategy: {prompt[:80]!r}", f"known: {known}")
    return STRATEGY_BY_NAME[name]
