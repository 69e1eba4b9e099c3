"""The engine: hand-made situations, each glitch, determinism, invariants of random play."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateplay_rl.arena import moves as m
from stateplay_rl.arena.game import simulate_first
from stateplay_rl.arena.opponent import STRATEGIES
from stateplay_rl.arena.state import (
    AIR,
    CROUCH,
    DOWN,
    MIN_GAP,
    NO_PROJECTILE,
    STAND,
    X_MAX,
    X_MIN,
    Event,
    Glitches,
    Trajectory,
)
from stateplay_rl.errors import InputError
from tests.arena.helpers import first, held, play


def kinds(trajectory: Trajectory) -> list[tuple[str, int, int]]:
    return [(event.kind, event.player, event.move) for event in trajectory.events]


def test_a_low_kick_drains_exactly_its_damage_and_gives_meter_in_its_first_active_frame() -> None:
    # Window 0 starts the kick in frame 1; start-up 2: it can hit from frame 3 on.
    clip = play({0: "A"})
    assert clip.events == (Event(3, "hit", 0, m.LOW_KICK),)
    assert clip.hp[2].tolist() == [160, 160]
    assert clip.hp[3].tolist() == [160, 160 - 16]
    assert clip.meter[3].tolist() == [40 + 8, 0 + 8]
    assert clip.hp[-1].tolist() == [160, 144]


@pytest.mark.parametrize(
    "button, move, crouching, hits",
    [
        ("X", m.STRONG, False, False),
        ("X", m.STRONG, True, False),
        ("Y", m.JAB, False, False),
        ("Z", m.OVERHEAD, False, False),
        ("Z", m.OVERHEAD, True, True),
        ("A", m.LOW_KICK, False, True),
        ("A", m.LOW_KICK, True, False),
        ("B", m.SWEEP, False, True),
        ("C", m.THROW, False, True),
        ("C", m.THROW, True, True),
    ],
)
def test_guarding_prevents_what_its_stance_can_guard(button: str, move: int, crouching: bool, hits: bool) -> None:
    clip = play({0: button, 1: button}, first(crouching=(False, crouching)))
    expected = 160 - m.MOVES[move].damage if hits else 160
    event = next(event for event in clip.events)
    assert (event.kind, event.move) == ("hit" if hits else "block", move)
    assert clip.hp[event.frame].tolist() == [160, expected]
    assert clip.meter[event.frame, 0] == 40 + (m.MOVES[move].meter if hits else m.METER_FOR_BLOCKED)


def test_a_high_jab_passes_over_a_crouching_body() -> None:
    clip = play({0: "Y"}, first(crouching=(False, True)))
    assert clip.events == ()
    assert (clip.hp == 160).all()


def test_a_blow_out_of_reach_whiffs_and_still_costs_time() -> None:
    clip = play({0: "X", 1: "RIGHT"}, first(x=(20, 80)))
    assert clip.events == ()
    # 12 frames of the move: held RIGHT does nothing before frame 13.
    assert (clip.column("x")[:13, 0] == 20).all()
    assert (clip.column("move")[1:13, 0] == m.STRONG).all()


def test_a_special_costs_meter_and_its_projectile_hits_far_away() -> None:
    clip = play({0: "D"}, first(x=(20, 70)), strategy="Evasive Hopping")
    assert ("special", 0, m.SPECIAL) in kinds(clip)
    assert clip.meter[0, 0] == 40
    assert clip.meter[1, 0] == 0
    assert (clip.column("projectile_x")[5:7, 0] != NO_PROJECTILE).all()


def test_a_special_without_meter_falls_back_to_the_strong_punch() -> None:
    clip = play({0: "D"}, first(meter=(36, 0)), strategy="Projectile Zoning")
    assert kinds(clip)[0] == ("fallback", 0, m.STRONG)
    assert clip.column("move")[1, 0] == m.STRONG
    assert (clip.column("projectile_x")[:, 0] == NO_PROJECTILE).all()
    assert clip.meter[1, 0] == 36


def test_a_guarded_special_chips_but_never_knocks_out() -> None:
    clip = play({0: "D"}, first(hp=(160, 100)))
    assert ("block", 0, m.SPECIAL) in kinds(clip)
    assert clip.hp[-1, 1] == 100 - m.CHIP_DAMAGE
    low = play({0: "D"}, first(hp=(160, 4)))
    assert low.hp[-1, 1] == 4


def test_a_knock_out_ends_the_match() -> None:
    clip = play({0: "A", 2: "A", 3: "RIGHT", 4: "X"}, first(hp=(160, 16)))
    assert kinds(clip) == [("hit", 0, m.LOW_KICK), ("ko", 0, m.LOW_KICK)]
    assert (clip.hp[3:, 1] == 0).all()
    assert (clip.column("stance")[3:, 1] == DOWN).all()
    # The winner no longer obeys: the kick of frames 1 to 8 is the last move.
    assert (clip.column("move")[9:, 0] == m.NONE).all()


def test_a_sweep_knocks_down_and_the_victim_gets_up() -> None:
    stance = play({0: "B"}).column("stance")[:, 1]
    assert (stance[5:16] == DOWN).all()
    assert (stance[16:19] == CROUCH).all()
    assert stance[19] == STAND


def test_jumping_and_crouching_and_walking_follow_the_buttons() -> None:
    clip = play({0: "RIGHT", 1: "UP", 4: "DOWN", 6: "LEFT"}, first(x=(20, 80)))
    x, stance = clip.column("x")[:, 0], clip.column("stance")[:, 0]
    assert x[:5].tolist() == [20, 22, 24, 26, 28]
    assert (stance[5:15] == AIR).all()
    assert (clip.column("y")[5:15, 0] > 0).all()
    assert stance[17] == CROUCH
    assert x[28] < x[24]


def test_both_can_hit_in_the_same_frame() -> None:
    # The rushdown opens with a jab as well.
    clip = play({0: "Y"}, first(), strategy="Relentless Rushdown")
    assert kinds(clip)[:2] == [("hit", 0, m.JAB), ("hit", 1, m.JAB)]
    assert clip.hp[3].tolist() == [144, 144]


def test_the_clock_ticks_once_a_second_and_stops_at_a_knock_out() -> None:
    assert play({}).timer_T.tolist() == [60] * 20 + [59] * 13
    assert (play({0: "A"}, first(hp=(160, 16))).timer_T == 60).all()


def test_stuck_hp_changes_hp_only() -> None:
    plan = {0: "A", 2: "B", 6: "D"}
    true, twin = play(plan), play(plan, glitches=Glitches(hits_drain_nothing=True))
    assert (twin.hp == twin.hp[0]).all()
    assert (true.hp != true.hp[0]).any()
    for name in ("x", "y", "stance", "meter", "move", "stun", "projectile_x"):
        assert np.array_equal(true.column(name), twin.column(name)), name
    assert true.events == twin.events


def test_stuck_meter_changes_meter_only_while_no_special_depends_on_it() -> None:
    plan = {0: "A", 2: "D"}
    true, twin = play(plan), play(plan, glitches=Glitches(specials_cost_nothing=True))
    assert (twin.meter == twin.meter[0]).all()
    assert true.meter[-1].tolist() != true.meter[0].tolist()
    for name in ("x", "y", "stance", "hp", "move", "stun", "projectile_x"):
        assert np.array_equal(true.column(name), twin.column(name)), name


def test_special_without_meter_fires_and_pays_nothing() -> None:
    start = first(x=(20, 60), meter=(12, 0))
    true = play({0: "D"}, start)
    twin = play({0: "D"}, start, glitches=Glitches(special_without_meter=True))
    assert kinds(true)[0] == ("fallback", 0, m.STRONG)
    assert kinds(twin)[0] == ("special", 0, m.SPECIAL)
    assert twin.meter[1, 0] == 12
    assert (twin.column("projectile_x")[5:8, 0] != NO_PROJECTILE).all()


def test_special_without_meter_changes_nothing_when_there_is_meter() -> None:
    true = play({0: "D"})
    twin = play({0: "D"}, glitches=Glitches(special_without_meter=True))
    assert np.array_equal(true.values_TPF, twin.values_TPF)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), strategy=st.sampled_from([s.name for s in STRATEGIES]))
def test_random_play_keeps_every_invariant(seed: int, strategy: str) -> None:
    """Even positions, stage and gap limits, one side for ever, multiples of 4; the same twice."""
    rng = np.random.default_rng(seed)
    gap = 2 * int(rng.integers(MIN_GAP // 2, 30))
    left = 2 * int(rng.integers(X_MIN // 2, (X_MAX - gap) // 2 + 1))
    x = (left, left + gap) if seed % 2 else (left + gap, left)
    start = first(x=x, hp=(48, 48), meter=(20, 60))
    buttons = np.repeat((rng.random((9, 11)) < 0.2).astype(np.uint8), 4, axis=0)[:33]
    clip = simulate_first(start, buttons, strategy)
    assert np.array_equal(clip.values_TPF, simulate_first(start, buttons, strategy).values_TPF)
    xs, ys = clip.column("x").astype(int), clip.column("y")
    assert (xs % 2 == 0).all()
    assert (ys % 2 == 0).all()
    assert (ys >= 0).all()
    assert ((xs >= X_MIN) & (xs <= X_MAX)).all()
    sign = np.sign(xs[0, 1] - xs[0, 0])
    assert ((xs[:, 1] - xs[:, 0]) * sign >= MIN_GAP).all()
    assert (clip.hp % 4 == 0).all()
    assert (clip.meter % 4 == 0).all()
    assert ((clip.meter >= 0) & (clip.meter <= 80)).all()
    assert all((later <= before).all() for before, later in pairwise(clip.hp))


def test_unknown_strategies_and_short_buttons_are_refused() -> None:
    with pytest.raises(InputError, match="unknown opponent strategy"):
        simulate_first(first(), held({}), "Sleeping")
    with pytest.raises(InputError, match="rows of buttons"):
        simulate_first(first(), held({}, rows=12), "Passive Guarding")


@pytest.mark.parametrize("x, hp", [((41, 60), (160, 160)), ((40, 50), (160, 160)), ((40, 60), (0, 160))])
def test_illegal_first_states_are_refused(x: tuple[int, int], hp: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="legal first state"):
        first(x=x, hp=hp)
