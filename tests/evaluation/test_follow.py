"""Events and impossible changes on series by hand; agreement with true states; bounds."""

from __future__ import annotations

import numpy as np
import pytest

from stateplay_rl.errors import InputError
from stateplay_rl.evaluation.agreement import compare_states
from stateplay_rl.evaluation.follow import FollowReport, follow
from stateplay_rl.evaluation.intervals import Bounds, bounds_of
from stateplay_rl.evaluation.profile import load_profile
from stateplay_rl.evaluation.series import ElementSeries, HudSeries, series_of, series_of_states

FACTS = load_profile("sf3").facts
NAN = float("nan")


def video(frames: int = 20, **elements: list[float]) -> HudSeries:
    """A series where what is not given stands still; a shorter list keeps its last value."""
    still = {"p1_hp": 100.0, "p2_hp": 100.0, "p1_meter": 50.0, "p2_meter": 50.0, "timer": 60.0}
    found = {}
    for name, value in still.items():
        row = elements.get(name, [value])
        low = np.array((row + [row[-1]] * frames)[:frames], np.float64)
        found[name] = ElementSeries(low, low.copy())
    return HudSeries(FACTS, found)


def events(report: FollowReport) -> list[tuple[str, str, int, float]]:
    return [(e.kind, e.player, e.frame, e.points) for e in report.events]


def broken(report: FollowReport) -> list[tuple[str, str, int]]:
    return [(v.kind, v.element, v.frame) for v in report.violations]


def test_a_still_video_has_no_event_and_breaks_no_rule() -> None:
    report = follow(video())
    assert (report.events, report.violations) == ((), ())
    assert report.initial["p1_hp"] == (100.0, 100.0)
    assert all(report.lawful(name) for name in FACTS.elements)


def test_a_hit_is_one_event_although_it_falls_in_steps() -> None:
    report = follow(video(p2_hp=[100, 100, 92, 84, 77, 71, 65]))
    assert events(report) == [("hit", "p2", 2, 35.0)]
    assert report.violations == ()


def test_two_hits_far_apart_are_two() -> None:
    assert [e[:3] for e in events(follow(video(p2_hp=[100] * 3 + [90] * 8 + [80])))] == [
        ("hit", "p2", 3),
        ("hit", "p2", 11),
    ]


def test_a_slow_drain_is_seen_and_ends_in_ko() -> None:
    report = follow(video(p1_hp=[6, 6, 5, 4, 3, 3, 2, 1, 0]))
    assert [e[:2] for e in events(report)] == [("hit", "p1"), ("ko", "p1")]
    assert report.violations == ()


def test_special_and_smaller_spending() -> None:
    assert events(follow(video(p1_meter=[104, 104, 0, 0, 17])))[0] == ("special", "p1", 2, 104.0)
    assert events(follow(video(p1_meter=[50, 50, 40])))[0] == ("spend", "p1", 2, 10.0)


@pytest.mark.parametrize(
    ("element", "values", "expected"),
    [
        ("p1_hp", [80, 80, 80, 90], ("rise", "p1_hp", 3)),
        ("p2_hp", [150, 150, 30], ("jump", "p2_hp", 2)),
        ("p2_hp", [100, 100, 60, 100], ("flicker", "p2_hp", 2)),
        ("p1_meter", [0, 0, 90], ("jump", "p1_meter", 2)),
        ("timer", [40, 40, 41], ("rise", "timer", 2)),
        ("timer", [40, 40, 37], ("jump", "timer", 2)),
        ("timer", [40, 40, 39, 38], ("jump", "timer", 3)),
        ("timer", [40, 40, 10, 40], ("flicker", "timer", 2)),
    ],
)
def test_what_cannot_happen(element: str, values: list[float], expected: tuple[str, str, int]) -> None:
    report = follow(video(**{element: values}))
    assert broken(report) == [expected]
    assert report.lawful(element) is False
    assert all(report.lawful(name) for name in FACTS.elements if name != element)


def test_what_may_happen_is_no_violation() -> None:
    ticking = [60.0] * 7 + [59.0] * 18 + [58.0] * 18
    report = follow(video(frames=43, timer=ticking, p1_meter=[10, 12, 15, 15, 38], p1_hp=[99.2, 99.9, 99.4, 100.1]))
    assert report.violations == ()


def test_gaps_hide_nothing_and_invent_nothing() -> None:
    hidden = [100.0, NAN, NAN, NAN, 88.0]
    assert events(follow(video(p2_hp=hidden))) == [("hit", "p2", 4, 12.0)]
    # Over forty frames without a reading the clock may well have moved by two.
    assert follow(video(frames=60, timer=[60.0] + [NAN] * 40 + [58.0])).violations == ()
    report = follow(video(frames=10, p1_hp=[100.0] * 4 + [NAN]))
    assert report.coverage["p1_hp"] == pytest.approx(0.4)
    assert report.lawful("p1_hp") is None
    assert follow(video(p1_hp=[NAN, 50.0])).initial["p1_hp"] is None


def test_an_unreadable_video_has_no_opinion() -> None:
    report = follow(video(**{name: [NAN] for name in FACTS.elements}))
    assert (report.events, report.violations) == ((), ())
    assert {report.lawful(name) for name in FACTS.elements} == {None}
    with pytest.raises(InputError, match="without frames"):
        series_of([], FACTS)


def states(**columns: list[float]) -> HudSeries:
    return video(**columns)


def test_agreement_finds_events_within_the_display_delay() -> None:
    true = states(p2_hp=[100] * 4 + [80])
    found = compare_states(video(p2_hp=[100] * 7 + [80]), true)
    assert found.events["hit"].found == 1
    assert found.events["hit"].delay_frames == 3.0
    assert found.initial_bounds == Bounds(5, 0, 0)
    assert found.tracked["p2_hp"].low == 1.0


def test_agreement_counts_missed_and_invented_events() -> None:
    true = states(p2_hp=[100] * 4 + [80])
    assert compare_states(video(), true).event_bounds == Bounds(0, 1, 0)
    assert compare_states(video(p2_hp=[100] * 4 + [80], p1_hp=[100, 100, 70]), true).event_bounds == Bounds(1, 1, 0)
    unread = video(p2_hp=[100.0] + [NAN] * 19)
    assert compare_states(unread, true).event_bounds == Bounds(0, 0, 1)


def test_a_wrong_or_unreadable_start_shows() -> None:
    true = states()
    assert compare_states(video(p1_hp=[103.0]), true).initial["p1_hp"] is False
    assert compare_states(video(p1_hp=[101.5]), true).initial["p1_hp"] is True
    assert compare_states(video(timer=[59.0]), true).initial["timer"] is False
    assert compare_states(video(timer=[NAN]), true).initial["timer"] is None
    with pytest.raises(ValueError, match="frames"):
        compare_states(video(frames=5), true)


def test_a_range_that_drains_holds_the_truth_of_either_end() -> None:
    seen = video()
    drained = ElementSeries(np.full(20, 0.0), np.full(20, 8.0))
    wide = HudSeries(FACTS, {**seen.elements, "p1_hp": drained})
    assert compare_states(wide, states(p1_hp=[6.0])).initial["p1_hp"] is True
    assert compare_states(wide, states(p1_hp=[12.0])).initial["p1_hp"] is False


def test_states_need_all_columns_and_frames() -> None:
    columns = {name: np.zeros(10) for name in FACTS.elements}
    assert series_of_states(columns, FACTS, 10) is not None
    assert series_of_states(columns, FACTS, 11) is None
    assert series_of_states({k: v for k, v in columns.items() if k != "timer"}, FACTS, 10) is None


def test_bounds() -> None:
    bounds = bounds_of([True, True, False, None])
    assert (bounds.low, bounds.high, bounds.coverage) == (0.5, pytest.approx(2 / 3), 0.75)
    assert (bounds + Bounds(0, 1, 0)).total == 5
    assert (Bounds().low, Bounds().high, Bounds().coverage) == (None, None, None)
    assert (Bounds(0, 0, 2).low, Bounds(0, 0, 2).high) == (0.0, None)
