"""Drawing conditions: reproducible, balanced, and worth watching."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stateplay_rl.arena.dataset import (
    CLASSES,
    class_sequence,
    classify,
    draw_condition,
    draw_conditions,
    simulate,
)
from stateplay_rl.arena.prompts import read_strategy
from stateplay_rl.errors import UsageError
from tests.arena.helpers import first, play


def test_shares_are_exact_and_the_order_is_seeded() -> None:
    names = class_sequence(50, seed=1)
    assert Counter(names) == {
        "normal": 30,
        "Macro_success": 5,
        "macro_fail": 5,
        "Result_win": 5,
        "Result_lose": 5,
    }
    assert names == class_sequence(50, seed=1)
    assert names != class_sequence(50, seed=2)
    assert Counter(class_sequence(7, 0, {"normal": 1, "macro_fail": 1})).total() == 7


@pytest.mark.parametrize("mix", [{}, {"normal": 0.0}, {"Normal": 1.0}, {"normal": -1.0, "macro_fail": 2.0}])
def test_a_senseless_mix_is_refused(mix: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="class mix"):
        class_sequence(4, 0, mix)


def test_conditions_are_of_their_class_and_a_bar_changes_early() -> None:
    conditions = draw_conditions(100, 3, dict.fromkeys(CLASSES, 1.0))
    assert Counter(c.mechanics_class for c in conditions) == dict.fromkeys(CLASSES, 20)
    for condition in conditions:
        truth = simulate(condition)
        assert classify(truth) == condition.mechanics_class
        early = slice(0, 15)
        assert np.ptp(truth.hp[early], axis=0).any() or np.ptp(truth.meter[early], axis=0).any()
        assert read_strategy(condition.prompt).name == condition.strategy
        windows = [condition.held_buttons[start : start + 4] for start in range(0, 36, 4)]
        assert all((window == window[0]).all() for window in windows)


def test_a_condition_depends_on_seed_index_and_class_only() -> None:
    alone = draw_condition(5, 17, "normal")
    again = draw_condition(5, 17, "normal")
    assert alone.first == again.first
    assert np.array_equal(alone.held_buttons, again.held_buttons)
    assert draw_condition(6, 17, "normal").first != alone.first


def test_both_kinds_of_bars_and_each_glitch_matter_often() -> None:
    truths = [simulate(c) for c in draw_conditions(200, 11)]
    assert np.mean([np.ptp(t.hp, axis=0).any() for t in truths]) > 0.8
    assert np.mean([np.ptp(t.meter, axis=0).any() for t in truths]) > 0.8


def test_classes_of_hand_made_clips() -> None:
    assert classify(play({0: "A"})) == "normal"
    assert classify(play({0: "D"})) == "Macro_success"
    assert classify(play({0: "D"}, first(meter=(0, 0)))) == "macro_fail"
    assert classify(play({0: "A"}, first(hp=(160, 16)))) == "Result_win"
    assert classify(play({}, first(hp=(12, 160)), "Relentless Rushdown")) == "Result_lose"
