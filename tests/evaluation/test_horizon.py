"""Quarters of a video: where it goes wrong shows in its own quarter and in no other."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stateplay_rl.evaluation.agreement import compare_states
from stateplay_rl.evaluation.follow import follow
from stateplay_rl.evaluation.horizon import horizon_of, mean_horizon, spans_of
from stateplay_rl.evaluation.intervals import Bounds
from stateplay_rl.evaluation.profile import load_profile
from stateplay_rl.evaluation.series import ElementSeries, HudSeries

FACTS = load_profile("sf3").facts
FRAMES = 40
START = {"p1_hp": 100.0, "p2_hp": 100.0, "p1_meter": 50.0, "p2_meter": 50.0, "timer": 60.0}


def series(**later: list[tuple[int, float]]) -> HudSeries:
    """All elements at their start values; of those named, from each frame on another value."""
    elements = {}
    for name, value in START.items():
        values_T = np.full(FRAMES, value)
        for frame, new in later.get(name, []):
            values_T[frame:] = new
        elements[name] = ElementSeries(values_T, values_T.copy())
    return HudSeries(FACTS, elements)


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 33, 97, 101])
def test_spans_cover_every_frame_once_and_differ_by_one_at_most(frames: int) -> None:
    spans = spans_of(frames)
    assert [t for start, end in spans for t in range(start, end)] == list(range(frames))
    lengths = [end - start for start, end in spans]
    assert len(spans) == min(4, frames)
    assert max(lengths) - min(lengths) <= 1


def test_a_late_fault_lowers_the_last_quarter_only() -> None:
    truth = series()
    seen = series(p1_hp=[(34, 140.0)])  # HP rises at frame 34
    report = follow(seen)
    quarters = horizon_of(seen, report, compare_states(seen, truth, report))
    assert [part.points[0] for part in quarters] == [100.0, 100.0, 100.0, 80.0]
    assert quarters[3].parts["rules"] == Bounds(4, 1, 0)
    assert [part.tracked.wrong > 0 for part in quarters] == [False, False, False, True]


def test_a_missed_event_counts_in_its_quarter_and_an_invented_one_in_its_own() -> None:
    truth, seen = series(p2_hp=[(12, 80.0)]), series(p1_hp=[(32, 70.0)])
    report = follow(seen)
    quarters = horizon_of(seen, report, compare_states(seen, truth, report))
    assert [part.parts["events"] for part in quarters] == [Bounds(), Bounds(0, 1, 0), Bounds(), Bounds(0, 1, 0)]


def test_the_quarters_events_are_the_videos_events() -> None:
    truth = series(p2_hp=[(12, 80.0), (30, 60.0)], p1_meter=[(20, 0.0)])
    seen = series(p2_hp=[(13, 80.0)], p1_meter=[(21, 0.0)], p1_hp=[(5, 90.0)])
    report = follow(seen)
    agreement = compare_states(seen, truth, report)
    total = sum((part.parts["events"] for part in horizon_of(seen, report, agreement)), Bounds())
    assert total == agreement.event_bounds == Bounds(2, 2, 0)


def test_an_unreadable_quarter_counts_as_wrong_below_and_not_at_all_above() -> None:
    seen = series()
    for element in seen.elements.values():
        element.low_T[20:30] = element.high_T[20:30] = np.nan
    quarters = horizon_of(seen, follow(seen), None)
    assert [part.points for part in quarters] == [(100.0, 100.0), (100.0, 100.0), (0.0, None), (100.0, 100.0)]
    assert [part.coverage for part in quarters] == [1.0, 1.0, 0.0, 1.0]
    mean = mean_horizon([quarters[0], quarters[2]])
    assert (mean["videos"], mean["low"], mean["high"], mean["coverage"]) == (2, 50.0, 100.0, 0.5)
    assert mean["parts"] == {"rules": Bounds(5, 0, 5).to_json()}
    json.dumps(mean, allow_nan=False)
