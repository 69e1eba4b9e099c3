"""The arena game: a deterministic two-player fighting game in integer arithmetic.

A clip is a pure function of (what the first frame shows, player 1's held buttons, the opponent's
strategy, glitch flags). Buttons of row t lead from frame t to frame t + 1, so that the 4-frame windows
of the buttons coincide with the latent slots of the video.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena import moves as m
from stateplay_rl.arena.opponent import STRATEGY_BY_NAME, opponent_buttons, threatened
from stateplay_rl.arena.state import (
    AIR,
    ATTACK_BITS,
    BIT,
    CROUCH,
    DOWN,
    FRAMES,
    MIN_GAP,
    NO_GLITCHES,
    NO_PROJECTILE,
    SPARK_BLOCK,
    SPARK_FRAMES,
    SPARK_HIT,
    SPARK_NONE,
    STAND,
    TIMER_FRAMES,
    X_MAX,
    X_MIN,
    ArenaState,
    Event,
    Fighter,
    FirstState,
    Glitches,
    Trajectory,
    button_masks,
)
from stateplay_rl.errors import InputError

WALK_SPEED = 2
PUSH_SPEED = 2
FALL_SPEED = 4
LAUNCH_HEIGHT = 8
JUMP_HEIGHTS = (6, 10, 14, 16, 18, 18, 18, 16, 14, 10, 6)
PROJECTILE_START = 12
FRAME_WIDTH = 96

# Attack buttons in order of priority when several are held.
ATTACK_BUTTONS = (
    (BIT["D"], m.SPECIAL),
    (BIT["C"], m.THROW),
    (BIT["B"], m.SWEEP),
    (BIT["A"], m.LOW_KICK),
    (BIT["Z"], m.OVERHEAD),
    (BIT["X"], m.STRONG),
    (BIT["Y"], m.JAB),
)
CROUCHING_MOVES = (m.LOW_KICK, m.SWEEP)


def simulate_first(
    first: FirstState,
    held_RK: NDArray[np.generic],
    strategy: str,
    glitches: Glitches = NO_GLITCHES,
    frames: int = FRAMES,
) -> Trajectory:
    """Play a clip.

    Args:
        first: What the first frame shows.
        held_RK: Player 1's held buttons [rows >= frames - 1, 11] in {0, 1}.
        strategy: Name of the opponent's strategy.
        glitches: Faults of the engine.
        frames: T, frames to record, the first included.

    Returns:
        The trajectory of T frames.

    Raises:
        InputError: unknown strategy or too few rows of buttons.
    """
    if strategy not in STRATEGY_BY_NAME:
        raise InputError(f"unknown opponent strategy {strategy!r}", f"one of {', '.join(STRATEGY_BY_NAME)}")
    masks = button_masks(held_RK)
    if len(masks) < frames - 1:
        raise InputError(f"{len(masks)} rows of buttons do not reach {frames} frames")
    script = STRATEGY_BY_NAME[strategy]
    state = ArenaState.start(first)
    one, two = state.fighters
    rows = [(one.frame(), two.frame())]
    timers = [state.timer]
    events: list[Event] = []
    for mask in masks[: frames - 1]:
        events += step(state, mask, opponent_buttons(script, state), glitches)
        rows.append((one.frame(), two.frame()))
        timers.append(state.timer)
    return Trajectory(np.array(rows, np.int16), np.array(timers, np.int16), tuple(events))


def step(state: ArenaState, held_1: int, held_2: int, glitches: Glitches = NO_GLITCHES) -> list[Event]:
    """Advance `state` in place by one frame; returns what happened."""
    one, two = state.fighters
    state.frame += 1
    if state.over:
        held_1 = held_2 = 0
    elif state.frame % TIMER_FRAMES == 0:
        state.timer = max(0, state.timer - 1)
    danger = threatened(one, two), threatened(two, one)
    events: list[Event] = []
    for player, (me, held) in enumerate(((one, held_1), (two, held_2))):
        started = _advance(me, held, danger[player], glitches)
        if started is not None:
            events.append(Event(state.frame, started, player, me.move))
    _separate(one, two)
    # Both contacts are found before either is applied, so that blows can be traded.
    contacts = _contact(one, two), _contact(two, one)
    for player, move in enumerate(contacts):
        if move is not None:
            attacker, victim = (one, two) if player == 0 else (two, one)
            events += _land(attacker, victim, move, glitches, player, state.frame)
    return events


def _advance(me: Fighter, held: int, danger: bool, glitches: Glitches) -> str | None:
    """One frame of one fighter without contacts; returns ``special``/``fallback`` when one starts."""
    me.spark_left = max(0, me.spark_left - 1)
    if me.spark_left == 0:
        me.spark = SPARK_NONE
    if me.projectile_x != NO_PROJECTILE:
        me.projectile_x += me.facing * m.PROJECTILE_SPEED
        if not 0 <= me.projectile_x < FRAME_WIDTH:
            me.projectile_x = NO_PROJECTILE
    if me.push > 0:
        me.push -= 1
        me.x -= me.facing * PUSH_SPEED
    if me.down > 0:
        _lie(me)
        return None
    if me.stun > 0:
        me.stun -= 1
        me.guard = me.guard and me.stun > 0
        return None
    me.guard = False
    if me.stance == AIR:
        _fly(me, held)
        return None
    if me.move != m.NONE:
        me.move_frame += 1
        if me.move_frame < m.MOVES[me.move].frames:
            if me.move == m.SPECIAL and me.move_frame == m.MOVES[m.SPECIAL].startup:
                me.projectile_x = me.x + me.facing * PROJECTILE_START
            return None
        me.move = m.NONE
    return _act(me, held, danger, glitches)


def _lie(me: Fighter) -> None:
    """Fall, lie, get up; a knocked-out fighter stays down."""
    me.y = max(0, me.y - FALL_SPEED)
    if me.hp == 0:
        return
    me.down -= 1
    if me.down == 0:
        me.stance = STAND
    elif me.down <= m.RISE_FRAMES:
        me.stance = CROUCH


def _fly(me: Fighter, held: int) -> None:
    """One frame of a jump, with at most one kick; landing ends both."""
    me.jump_frame += 1
    me.x += me.jump_dx
    if me.jump_frame == len(JUMP_HEIGHTS):
        me.y, me.stance, me.move = 0, STAND, m.NONE
        return
    me.y = JUMP_HEIGHTS[me.jump_frame]
    if me.move != m.NONE:
        me.move_frame += 1
    elif held & ATTACK_BITS:
        me.move, me.move_frame, me.connected = m.JUMP_KICK, 0, False


def _act(me: Fighter, held: int, danger: bool, glitches: Glitches) -> str | None:
    """A fighter who is free to act follows the buttons: attack, jump, guard, crouch, walk."""
    for bit, move in ATTACK_BUTTONS:
        if held & bit:
            return _start(me, move, glitches)
    right, left = bool(held & BIT["RIGHT"]), bool(held & BIT["LEFT"])
    direction = int(right) - int(left)
    if held & BIT["UP"]:
        me.stance, me.jump_frame, me.jump_dx = AIR, 0, direction * WALK_SPEED
        me.y = JUMP_HEIGHTS[0]
        me.x += me.jump_dx
        return None
    me.stance = CROUCH if held & BIT["DOWN"] else STAND
    if danger and direction == -me.facing:
        me.guard = True
    elif me.stance == STAND:
        me.x += direction * WALK_SPEED
    return None


def _start(me: Fighter, move: int, glitches: Glitches) -> str | None:
    """Begin an attack; the special pays its cost now or falls back to a normal move."""
    started: str | None = None
    if move == m.SPECIAL:
        paid = me.meter >= m.SPECIAL_COST
        if paid and not glitches.specials_cost_nothing:
            me.meter -= m.SPECIAL_COST
        fires = paid or glitches.special_without_meter
        started = "special" if fires else "fallback"
        move = m.SPECIAL if fires else m.SPECIAL_FALLBACK
    me.move, me.move_frame, me.connected = move, 0, False
    me.stance = CROUCH if move in CROUCHING_MOVES else STAND
    return started


def _separate(one: Fighter, two: Fighter) -> None:
    """Keep both on stage and at least `MIN_GAP` apart; fighters never change sides."""
    for me in (one, two):
        me.x = min(X_MAX, max(X_MIN, me.x))
    overlap = MIN_GAP - (two.x - one.x) * one.facing
    if overlap <= 0:
        return
    # Even shares keep x even; player 2 takes the odd pair of pixels.
    share = overlap // 4 * 2
    one.x = min(X_MAX, max(X_MIN, one.x - one.facing * share))
    two.x = min(X_MAX, max(X_MIN, one.x + one.facing * MIN_GAP))
    one.x = two.x - one.facing * MIN_GAP


def _contact(attacker: Fighter, victim: Fighter) -> int | None:
    """The move that touches the victim in this frame, if any."""
    if victim.down > 0 or victim.hp == 0:
        return None
    if attacker.projectile_x != NO_PROJECTILE:
        near = abs(attacker.projectile_x - victim.x) <= m.PROJECTILE_HALF_WIDTH
        if near and victim.y <= m.PROJECTILE_HEIGHT_LIMIT:
            attacker.projectile_x = NO_PROJECTILE
            return m.SPECIAL
    if attacker.move in (m.NONE, m.SPECIAL) or attacker.connected:
        return None
    move = m.MOVES[attacker.move]
    in_time = move.startup <= attacker.move_frame < move.startup + move.active
    in_reach = abs(attacker.x - victim.x) <= move.reach and victim.y <= m.REACHABLE_HEIGHT[move.level]
    if not (in_time and in_reach):
        return None
    if move.level == "high" and victim.stance == CROUCH:
        return None
    if move.level == "throw" and victim.stun > 0:
        return None
    attacker.connected = True
    return attacker.move


def _guards(victim: Fighter, level: m.Level) -> bool:
    if not victim.guard or level == "throw":
        return False
    if level == "low":
        return victim.stance == CROUCH
    if level == "overhead":
        return victim.stance == STAND
    return True


def _land(attacker: Fighter, victim: Fighter, move_id: int, glitches: Glitches, player: int, frame: int) -> list[Event]:
    """Apply a blow: guarded, or damage, meter, stun or knock-down, and perhaps the knock-out."""
    move = m.MOVES[move_id]
    victim.spark_left = SPARK_FRAMES
    if _guards(victim, move.level):
        victim.spark = SPARK_BLOCK
        victim.stun, victim.push = m.BLOCK_STUN_FRAMES, m.BLOCK_PUSH_FRAMES
        if move_id == m.SPECIAL:
            # Chip damage never knocks out.
            _drain(victim, min(m.CHIP_DAMAGE, victim.hp - 4), glitches)
        else:
            _charge(attacker, m.METER_FOR_BLOCKED, glitches)
        return [Event(frame, "block", player, move_id)]
    victim.spark, victim.guard = SPARK_HIT, False
    victim.move = m.NONE
    _drain(victim, move.damage, glitches)
    _charge(attacker, move.meter, glitches)
    _charge(victim, m.METER_FOR_TAKEN, glitches)
    if move.knockdown or victim.stance == AIR or victim.hp == 0:
        victim.stance, victim.y = DOWN, max(victim.y, LAUNCH_HEIGHT)
        victim.down, victim.stun, victim.push = m.DOWN_FRAMES, 0, m.DOWN_PUSH_FRAMES
    else:
        victim.stun, victim.push = move.stun, move.push
    events = [Event(frame, "hit", player, move_id)]
    if victim.hp == 0:
        events.append(Event(frame, "ko", player, move_id))
    return events


def _drain(victim: Fighter, damage: int, glitches: Glitches) -> None:
    if not glitches.hits_drain_nothing:
        victim.hp = max(0, victim.hp - damage)


def _charge(fighter: Fighter, gain: int, glitches: Glitches) -> None:
    if not glitches.specials_cost_nothing:
        fighter.meter = min(m.METER_MAX, fighter.meter + gain)
