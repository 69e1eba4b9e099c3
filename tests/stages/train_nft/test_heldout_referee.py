"""The held-out referee's line and the alarm when the judge rises while the referee falls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stateplay_rl.config.train_nft import HeldoutConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.evaluation.intervals import Bounds
from stateplay_rl.evaluation.referee import RefereeCase, RefereeVerdict
from stateplay_rl.stages.train_nft.heldout import evaluate
from stateplay_rl.stages.train_nft.heldout_referee import HeldoutJudges, referee_alarm
from tests.stages.train_nft.helpers import ONE, Bench, BrightJudge, make_config, write_tiny_conditions


class DarkReferee:
    """Darker videos get more points; every third video cannot be read."""

    name = "dark-v1"

    def __init__(self) -> None:
        self.seen = 0

    def judge(self, frames_ThwC: NDArray[np.uint8], case: RefereeCase) -> RefereeVerdict:
        self.seen += 1
        assert frames_ThwC.ndim == 4
        assert case.first_frame_hwC.shape == frames_ThwC.shape[1:]
        points = 100.0 - float(frames_ThwC.mean()) / 2.55
        readable = self.seen % 3 != 0
        parts = {"rules": Bounds(1, 0, 0) if readable else Bounds(0, 0, 1)}
        return RefereeVerdict(points if readable else 0.0, points if readable else None, float(readable), parts)


def test_the_line_of_an_evaluation(tmp_path: Path) -> None:
    conditions = write_tiny_conditions(tmp_path / "conditions", passing=1, heldout=3)
    bench = Bench(heldout={"conditions": 3, "samples": 2, "seed": 11})
    referee = DarkReferee()
    result = evaluate(
        bench.world,
        conditions,
        BrightJudge(),
        bench.config,
        ONE,
        tmp_path,
        batches_done=0,
        candidates_seen=0,
        policy="live",
        others=HeldoutJudges(referee),
    )
    line = dict(result.line)
    json.dumps(line, allow_nan=False)
    assert referee.seen == 6
    told = line["referee"]
    assert (told["name"], told["videos"]) == ("dark-v1", 6)
    assert told["coverage"] == pytest.approx(4 / 6)
    assert told["low"] < told["high"]
    assert told["parts"]["rules"]["unreadable"] == 2
    assert set(told["by_class"]) == set(line["by_class"])
    assert line["evaluator"] is None
    assert line["picture_drift"]["conditions"] == 3
    assert set(line["picture_drift"]["ratio"]) == {"luma", "saturation", "motion", "sharpness", "flicker"}
    assert line["reward_mean"] == result.reward_mean


def lines(*points: tuple[float, float | None]) -> list[Mapping[str, object]]:
    return [
        {"batch": 10 * k, "reward_mean": reward, "referee": None if low is None else {"low": low}}
        for k, (reward, low) in enumerate(points)
    ]


def test_judge_up_referee_down_is_an_alarm() -> None:
    config = make_config()
    alarm = referee_alarm(lines((40.0, 80.0), (50.0, 79.0), (60.0, 70.0)), config)
    assert alarm is not None
    assert (alarm["name"], alarm["severity"], alarm["batch"]) == ("referee_falls", "alarm", 19)
    assert alarm["value"] == pytest.approx(10.0)
    assert "rose 20.0 points" in alarm["message"]
    assert set(alarm) == {"batch", "name", "value", "threshold", "severity", "message"}


@pytest.mark.parametrize(
    "points",
    [
        [(40.0, 80.0), (60.0, 85.0)],
        [(60.0, 80.0), (40.0, 60.0)],
        [(40.0, None), (60.0, None)],
        [(40.0, 80.0), (60.0, None)],
        [(40.0, 80.0)],
        [],
    ],
)
def test_anything_else_is_none(points: list[tuple[float, float | None]]) -> None:
    assert referee_alarm(lines(*points), make_config()) is None


def test_who_looks_at_held_out_videos(tmp_path: Path) -> None:
    conditions = write_tiny_conditions(tmp_path / "conditions", passing=1, heldout=1)
    assert HeldoutJudges.of(HeldoutConfig(), conditions) == HeldoutJudges()
    assert HeldoutJudges.of(HeldoutConfig(conditions=4), conditions).referee is None, "clips of no known game"
    named = HeldoutJudges.of(HeldoutConfig(conditions=4, referee="sf3"), conditions)
    assert named.referee is not None
    assert named.evaluator is None
    with pytest.raises(UsageError, match="belong together"):
        HeldoutJudges.of(HeldoutConfig(conditions=4, evaluator="stateplay"), conditions)
    (tmp_path / "evaluation").mkdir()
    both = HeldoutConfig(conditions=4, evaluator="stateplay", evaluator_checkout=tmp_path)
    assert HeldoutJudges.of(both, conditions).evaluator is not None
