"""Prompts in the real data's form, and the strategy read back from them."""

from __future__ import annotations

import pytest

from stateplay_rl.arena.opponent import STRATEGIES
from stateplay_rl.arena.prompts import behaviours, read_strategy, write_prompt
from stateplay_rl.errors import InputError
from tests.arena.helpers import first, play


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_the_strategy_is_read_back(strategy) -> None:
    prompt = write_prompt(strategy, play({0: "A"}, strategy=strategy.name))
    assert prompt.startswith("NPC: Active_Behavior(")
    assert prompt.endswith(f"Strategy({strategy.text})")
    assert read_strategy(prompt) is strategy


def test_behaviours_name_what_happens_to_the_opponent() -> None:
    assert behaviours(play({})) == ((), ("Idle",))
    assert behaviours(play({0: "B"})) == ((), ("Idle", "Standing Block"))
    walking = play({}, first(x=(20, 70)), "Close Grappling")
    assert behaviours(walking)[0][0] == "Walk Left"


@pytest.mark.parametrize("prompt", ["", "SF3 Game.", "NPC: Strategy(Sleeping: Does nothing.)"])
def test_a_prompt_without_an_arena_strategy_is_refused(prompt: str) -> None:
    with pytest.raises(InputError, match="no arena strategy"):
        read_strategy(prompt)
