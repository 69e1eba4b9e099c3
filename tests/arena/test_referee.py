"""The referee's scale: engine 100, frozen 0, glitched twins between; and what each part says."""

from __future__ import annotations

import numpy as np
import pytest

from stateplay_rl.arena.calibrate import VARIANTS, measure
from stateplay_rl.arena.dataset import draw_conditions, render, simulate
from stateplay_rl.arena.opponent import STRATEGY_BY_NAME
from stateplay_rl.arena.prompts import write_prompt
from stateplay_rl.arena.referee import ENGINE_TOTAL, FROZEN_TOTAL, compare, judge_video
from stateplay_rl.arena.state import Glitches
from stateplay_rl.errors import InputError
from tests.arena.helpers import first, held, play


def test_both_ends_of_the_scale() -> None:
    conditions = draw_conditions(60, 31)
    assert all(report.total == ENGINE_TOTAL for report in measure(conditions, "engine"))
    frozen = measure(conditions, "frozen first frame")
    assert np.mean([report.total for report in frozen]) == pytest.approx(FROZEN_TOTAL, abs=1e-9)
    assert all(report.frozen_display for report in frozen)


def test_the_engine_gets_100_through_mp4() -> None:
    reports = measure(draw_conditions(10, 32), "engine through mp4")
    assert all(report.total == ENGINE_TOTAL for report in reports)
    assert all(report.events.f1 == 1.0 and report.stance_agreement == 1.0 for report in reports)


def test_glitched_twins_are_clearly_lower() -> None:
    conditions = draw_conditions(60, 33)
    mean = {
        name: np.mean([report.total for report in measure(conditions, name)]) for name in VARIANTS if "mp4" not in name
    }
    assert 45 < mean["hits_drain_nothing"] < 75
    assert 45 < mean["specials_cost_nothing"] < 75
    assert mean["both displays"] < 35
    assert mean["special_without_meter"] < 99
    wrong = [c for c in conditions if c.mechanics_class == "macro_fail"]
    assert np.mean([report.total for report in measure(wrong, "special_without_meter")]) < 75


def test_each_part_names_its_own_fault() -> None:
    plan = {0: "A", 2: "B", 6: "D"}
    truth = play(plan)
    stuck_hp = compare(render(play(plan, glitches=Glitches(hits_drain_nothing=True))), truth)
    assert (stuck_hp.hp, stuck_hp.meter, stuck_hp.position) == (0.0, 100.0, 100.0)
    assert (stuck_hp.frozen_hp, stuck_hp.frozen_meter) == (True, False)
    stuck_meter = compare(render(play(plan, glitches=Glitches(specials_cost_nothing=True))), truth)
    assert (stuck_meter.hp, stuck_meter.meter, stuck_meter.position) == (100.0, 0.0, 100.0)
    assert (stuck_meter.frozen_hp, stuck_meter.frozen_meter) == (False, True)


def test_a_bar_that_truly_stands_still_only_costs_when_it_moves() -> None:
    # Guarded: the meter of player 1 rises by 4, no HP changes.
    truth = play({0: "X"})
    assert (truth.hp == 160).all()
    right = compare(render(truth), truth)
    assert right.total == 100.0
    assert right.hp is None
    assert right.frozen_hp is None
    wrong = compare(render(play({0: "X"}, strategy="Evasive Hopping")), truth)
    assert wrong.total < right.total


def test_wrong_bodies_cost_at_most_their_share() -> None:
    truth = play({0: "A", 2: "RIGHT"})
    video = render(truth)
    video[1:, 14:] = video[:1, 14:]
    report = compare(video, truth)
    assert (report.hp, report.meter, report.position) == (100.0, 100.0, 0.0)
    assert 70.0 <= report.total < 95.0


def test_an_unreadable_video_scores_0_with_its_verdict() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (33, 64, 96, 3)).astype(np.uint8)
    report = compare(noise, play({0: "A"}))
    assert not report.readable
    assert report.score == 0.0
    assert report.details()["readable"] is False


def test_the_score_is_the_total_clipped() -> None:
    truth = play({0: "A"})
    worse = compare(render(play({0: "RIGHT+UP", 3: "D"}, first(meter=(80, 60)), "Projectile Zoning")), truth)
    assert worse.total < 0.0
    assert worse.readable
    assert worse.score == 0.0


def test_the_truth_comes_from_pixels_buttons_and_prompt_alone() -> None:
    start = first(x=(66, 30), hp=(88, 120), meter=(12, 80), crouching=(True, False), timer=7)
    plan = {0: "LEFT", 3: "B", 6: "D"}
    truth = play(plan, start, "Relentless Rushdown")
    video = render(truth)
    prompt = write_prompt(STRATEGY_BY_NAME["Relentless Rushdown"], truth)
    assert judge_video(video[0], held(plan), prompt, video).total == 100.0
    other = prompt.replace("Relentless Rushdown", "Close Grappling")
    assert judge_video(video[0], held(plan), other, video).total < 90.0
    assert judge_video(video[0], held({}), prompt, video).total < 90.0


def test_a_video_of_another_length_is_refused() -> None:
    truth = play({})
    with pytest.raises(InputError, match="frames"):
        compare(render(truth)[:20], truth)


@pytest.mark.slow
def test_the_scale_holds_over_thousands_of_clips() -> None:
    for condition in draw_conditions(3000, 34):
        truth = simulate(condition)
        video = render(truth)
        report = judge_video(video[0], condition.held_buttons, condition.prompt, video)
        assert report.total == 100.0
        frozen = compare(np.repeat(video[:1], len(video), axis=0), truth)
        assert frozen.total == pytest.approx(0.0, abs=1e-9)
