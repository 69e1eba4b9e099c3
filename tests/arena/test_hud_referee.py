"""Arena on the HUD interface: its reader against the engine's states, its referee against the other one."""

from __future__ import annotations

import numpy as np
import pytest

from stateplay_rl.arena.dataset import ArenaCondition, draw_conditions, render, simulate
from stateplay_rl.arena.hud_referee import ARENA_FACTS, ArenaReader, ArenaReferee
from stateplay_rl.arena.opponent import STRATEGY_BY_NAME
from stateplay_rl.arena.prompts import write_prompt
from stateplay_rl.arena.referee import judge_video
from stateplay_rl.arena.state import Glitches
from stateplay_rl.errors import InputError
from stateplay_rl.evaluation import stress
from stateplay_rl.evaluation.agreement import compare_states
from stateplay_rl.evaluation.follow import follow
from stateplay_rl.evaluation.hud import HudReader
from stateplay_rl.evaluation.referee import HudReferee, RefereeCase, VideoReferee
from stateplay_rl.evaluation.series import series_of, series_of_states

READER: HudReader = ArenaReader()
CONDITIONS = draw_conditions(12, 77)


def states_of(condition: ArenaCondition) -> dict[str, np.ndarray]:
    truth = simulate(condition)
    return {
        "p1_hp": truth.hp[:, 0],
        "p2_hp": truth.hp[:, 1],
        "p1_meter": truth.meter[:, 0],
        "p2_meter": truth.meter[:, 1],
        "timer": truth.timer_T,
    }


def case_of(condition: ArenaCondition) -> RefereeCase:
    truth = simulate(condition)
    prompt = write_prompt(STRATEGY_BY_NAME[condition.strategy], truth)
    return RefereeCase(render(truth)[0], condition.held_buttons, prompt, states_of(condition))


def test_the_engines_own_clips_agree_with_its_states_and_break_no_rule() -> None:
    for condition in CONDITIONS:
        video = render(simulate(condition))
        series = series_of(READER.read_video(video), ARENA_FACTS)
        truth = series_of_states(states_of(condition), ARENA_FACTS, len(video))
        assert truth is not None
        report = follow(series)
        assert report.violations == ()
        agreement = compare_states(series, truth, report)
        assert agreement.initial_bounds.low == 1.0
        assert agreement.event_bounds.wrong == 0
        assert all(bounds.low == 1.0 for bounds in agreement.tracked.values())


def test_frozen_displays_lose_points_with_the_follower_too() -> None:
    referee: VideoReferee = HudReferee(READER)
    scores: dict[bool, list[float]] = {True: [], False: []}
    for condition in CONDITIONS:
        video = render(simulate(condition))
        for frozen in (True, False):
            shown = np.repeat(video[:1], len(video), axis=0) if frozen else video
            scores[frozen].append(referee.judge(shown, case_of(condition)).low)
    assert np.mean(scores[False]) == 100.0
    assert np.mean(scores[True]) < 85.0


def test_arenas_referee_says_the_same_through_the_interface() -> None:
    referee: VideoReferee = ArenaReferee()
    for condition in CONDITIONS[:4]:
        case = case_of(condition)
        video = render(simulate(condition, glitches=Glitches(hits_drain_nothing=True)))
        verdict = referee.judge(video, case)
        expected = judge_video(case.first_frame_hwC, case.held_RK, case.prompt, video)
        assert (verdict.low, verdict.high) == (expected.score, expected.score)
    broken = referee.judge(np.random.default_rng(0).integers(0, 256, video.shape, dtype=np.uint8), case)
    assert (broken.low, broken.high) == (0.0, None)


def test_arenas_quarters_say_when_a_video_goes_wrong() -> None:
    referee = ArenaReferee()
    condition = CONDITIONS[0]
    case, video = case_of(condition), render(simulate(condition))
    assert [part.points for part in referee.judge(video, case).horizon] == [(100.0, 100.0)] * 4
    other = render(simulate(CONDITIONS[1]))
    half = len(video) // 2
    late = referee.judge(np.concatenate([video[:half], other[half:]]), case).horizon
    assert [part.points[0] == 100.0 for part in late] == [True, True, False, False]
    noise = np.random.default_rng(0).integers(0, 256, video.shape, dtype=np.uint8)
    assert [part.points for part in referee.judge(noise, case).horizon] == [(0.0, None)] * 4


def test_foreign_pictures_are_unreadable() -> None:
    for kind, picture in stress.foreign_pictures(40, seed=2):
        assert not any(e.readable for e in READER.read(picture).elements.values()), kind
        small = np.ascontiguousarray(picture[:64, :96])
        assert not READER.read(small).readable, kind
    with pytest.raises(InputError, match="RGB"):
        READER.read(np.zeros((64, 96), np.uint8))
