"""Each strategy does what its text says."""

from __future__ import annotations

import numpy as np
import pytest

from stateplay_rl.arena import moves as m
from stateplay_rl.arena.opponent import STRATEGIES
from stateplay_rl.arena.state import AIR
from tests.arena.helpers import first, play


def moves_of_opponent(strategy: str, gap: int, plan: dict[int, str] | None = None) -> set[int]:
    clip = play(plan or {}, first(x=(20, 20 + gap), meter=(40, 40)), strategy)
    return set(clip.column("move")[:, 1].tolist()) - {m.NONE}


def test_passive_guarding_stays_where_it_is_and_never_attacks() -> None:
    clip = play({}, first(x=(20, 60)), "Passive Guarding")
    assert (clip.column("x")[:, 1] == 60).all()
    assert moves_of_opponent("Passive Guarding", 18, {0: "X"}) == set()


@pytest.mark.parametrize("strategy", ["Relentless Rushdown", "Close Grappling"])
def test_attackers_come_closer(strategy: str) -> None:
    x = play({}, first(x=(20, 70)), strategy).column("x")[:, 1]
    assert x[10] == 50


def test_grappling_throws_and_rushdown_strikes_in_close() -> None:
    assert m.THROW in moves_of_opponent("Close Grappling", 18)
    assert moves_of_opponent("Relentless Rushdown", 18) & {m.JAB, m.LOW_KICK, m.STRONG}


def test_zoning_fires_from_far_and_sweeps_in_close() -> None:
    assert m.SPECIAL in moves_of_opponent("Projectile Zoning", 50)
    assert m.SWEEP in moves_of_opponent("Projectile Zoning", 18)


def test_whiff_punishing_answers_a_missed_move_with_a_sweep() -> None:
    assert m.SWEEP in moves_of_opponent("Whiff Punishing", 24, {0: "C"})
    assert moves_of_opponent("Whiff Punishing", 24) == set()


def test_evasive_hopping_jumps() -> None:
    assert AIR in play({}, first(x=(20, 60)), "Evasive Hopping").column("stance")[:, 1]


def test_the_strategy_alone_changes_the_clip() -> None:
    clips = [play({0: "RIGHT", 3: "X"}, first(x=(20, 60)), s.name).values_TPF for s in STRATEGIES]
    for i, clip in enumerate(clips):
        assert not any(np.array_equal(clip, other) for other in clips[:i])
