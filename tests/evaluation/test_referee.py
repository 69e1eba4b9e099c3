"""The referee's points, the judge-up-referee-down rule, and the data check."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stateplay_rl.evaluation.data_check import check_first_frame, summarise_checks
from stateplay_rl.evaluation.hud import ProfileReader
from stateplay_rl.evaluation.intervals import Bounds, points_of
from stateplay_rl.evaluation.referee import (
    HudReferee,
    RefereeCase,
    VideoReferee,
    mean_of,
)
from tests.evaluation.hud_painter import SF3, paint, scene

READER = ProfileReader(SF3)
VALUES = {"p1_hp": 96.0, "p2_hp": 120.0, "p1_meter": 61.0, "p2_meter": 20.0, "timer": 38.0}
FRAMES = 12


def case(**later: float) -> RefereeCase:
    """True states: `VALUES`, and from frame 6 on those given."""
    states = {
        name: np.array([value] * 6 + [later.get(name, value)] * (FRAMES - 6), np.int64)
        for name, value in VALUES.items()
    }
    return RefereeCase(scene(), np.zeros((FRAMES, 11), np.uint8), "any", states)


def video(*changes: tuple[int, dict[str, float]]) -> np.ndarray:
    """Painted frames: each change holds from its frame on."""
    values, frames = dict(VALUES), []
    for t in range(FRAMES):
        for frame, change in changes:
            if t == frame:
                values.update(change)
        frames.append(paint(values))
    return np.stack(frames)


REFEREE: VideoReferee = HudReferee(READER)


def test_a_right_video_gets_all_points_and_a_frozen_one_does_not() -> None:
    truth = case(p2_hp=90.0)
    right = REFEREE.judge(video((6, {"p2_hp": 90.0})), truth)
    assert (right.low, right.high, right.coverage) == (100.0, 100.0, 1.0)
    frozen = REFEREE.judge(video(), truth)
    assert frozen.low < right.low
    assert frozen.parts["events"] == Bounds(0, 1, 0)
    json.dumps(right.to_json(), allow_nan=False)


def test_impossible_and_invented_changes_cost_points() -> None:
    glitch = REFEREE.judge(video((4, {"p1_hp": 150.0}), (8, {"p2_hp": 60.0})), case())
    assert glitch.low < 100.0
    assert glitch.parts["rules"].wrong == 1
    assert glitch.parts["events"] == Bounds(0, 1, 0)


def test_an_unreadable_video_has_a_lower_bound_of_zero_and_no_upper_one() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (FRAMES, 224, 384, 3), dtype=np.uint8)
    verdict = REFEREE.judge(noise, case(p2_hp=90.0))
    assert (verdict.low, verdict.high, verdict.coverage) == (0.0, None, 0.0)


def test_without_true_states_only_the_rules_count() -> None:
    verdict = REFEREE.judge(video(), RefereeCase(scene(), np.zeros((FRAMES, 11)), ""))
    assert set(verdict.parts) == {"rules"}
    assert verdict.low == 100.0


def test_points_and_means_leave_out_what_says_nothing() -> None:
    assert points_of([Bounds(1, 1, 0), Bounds()]) == (50.0, 50.0)
    assert points_of([Bounds(1, 0, 1), Bounds(0, 0, 1)]) == (25.0, 100.0)
    assert points_of([]) == (0.0, None)
    assert mean_of([])["low"] is None


def test_first_frame_against_state_columns() -> None:
    states = {name: np.array([value, 0.0]) for name, value in VALUES.items()}
    checks = check_first_frame(READER, paint(VALUES), states)
    assert [(c.element, c.agrees) for c in checks] == [(name, True) for name in SF3.elements]
    wrong = check_first_frame(READER, paint(VALUES), {**states, "p2_hp": np.array([90.0])})
    assert [c.element for c in wrong if c.agrees is False] == ["p2_hp"]
    blind = check_first_frame(READER, scene(3), states)
    assert {c.agrees for c in blind} == {None}
    assert check_first_frame(READER, scene(3), {"macro_ready": np.array([1])}) == ()
    summary = summarise_checks({"a": checks, "b": wrong, "c": blind, "d": ()}, "sf3")
    assert (summary["conditions"], summary["disagreeing"], summary["unreadable"]) == (3, 1, 1)
    assert summary["by_element"]["p2_hp"]["low"] == pytest.approx(1 / 3)  # type: ignore[index]
    assert summary["examples"][0]["condition_id"] == "b"  # type: ignore[index]
    json.dumps(summary, allow_nan=False)
