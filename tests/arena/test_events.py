"""Events seen in readings and how they are matched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stateplay_rl.arena.events import SeenEvent, compare_events, seen_events
from stateplay_rl.arena.pixels import true_reading
from tests.arena.helpers import play


def test_a_kick_then_a_special_make_these_events() -> None:
    events = seen_events(true_reading(play({0: "A", 2: "D"})))
    assert events[:3] == [
        SeenEvent("hp_loss", 1, 3),
        SeenEvent("meter_gain", 0, 3),
        SeenEvent("meter_gain", 1, 3),
    ]
    assert SeenEvent("meter_cost", 0, 9) in events


def test_the_truth_matches_itself_and_a_delay_is_measured() -> None:
    true = true_reading(play({0: "A"}))
    exact = compare_events(true, true)
    assert (exact.found, exact.missed, exact.invented, exact.timing_frames) == (3, 0, 0, 0.0)
    assert exact.f1 == 1.0
    late = replace(true, hp_TP=np.roll(true.hp_TP, 2, axis=0), meter_TP=np.roll(true.meter_TP, 2, axis=0))
    late.hp_TP[:2], late.meter_TP[:2] = true.hp_TP[0], true.meter_TP[0]
    assert compare_events(late, true).timing_frames == 2.0


def test_missed_and_invented_events_are_counted() -> None:
    true = true_reading(play({0: "A"}))
    still = replace(true, hp_TP=np.repeat(true.hp_TP[:1], 33, axis=0))
    missing = compare_events(still, true)
    assert (missing.found, missing.missed, missing.invented) == (2, 1, 0)
    extra = compare_events(true, still)
    assert (extra.found, extra.missed, extra.invented) == (2, 0, 1)


def test_a_loss_smeared_over_two_frames_is_one_event() -> None:
    true = true_reading(play({0: "A"}))
    smeared = true.hp_TP.copy()
    smeared[3, 1] += 2
    report = compare_events(replace(true, hp_TP=smeared), true)
    assert (report.found, report.missed, report.invented) == (3, 0, 0)
