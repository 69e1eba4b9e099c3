"""The held-out referee's line, and who looks at held-out videos."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stateplay_rl.config.train_nft import HeldoutConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.evaluation.action_following import Calibration
from stateplay_rl.evaluation.checkout_metrics import StateplayEvaluator
from stateplay_rl.evaluation.horizon import HorizonPart, spans_of
from stateplay_rl.evaluation.intervals import Bounds
from stateplay_rl.evaluation.referee import RefereeCase, RefereeVerdict
from stateplay_rl.stages.train_nft.heldout import Occasion, evaluate
from stateplay_rl.stages.train_nft.heldout_referee import HeldoutViewers
from stateplay_rl.stages.train_nft.in_flight import Judges
from tests.stages.train_nft.helpers import ONE, Bench, BrightJudge, write_tiny_conditions
from tests.worlds.tiny import FRAMES


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
        quarters = tuple(
            HorizonPart(start, end, {"rules": Bounds(4 - k, k, 0)}, Bounds(), 1.0)
            for k, (start, end) in enumerate(spans_of(len(frames_ThwC)))
        )
        low, high = (points, points) if readable else (0.0, None)
        return RefereeVerdict(low, high, float(readable), parts, horizon=quarters)


def test_the_line_of_an_evaluation(tmp_path: Path) -> None:
    conditions = write_tiny_conditions(tmp_path / "conditions", passing=1, heldout=3)
    bench = Bench(heldout={"conditions": 3, "samples": 2, "seed": 11})
    referee = DarkReferee()
    result = evaluate(
        bench.world,
        conditions,
        Judges(BrightJudge()),
        bench.config,
        ONE,
        tmp_path,
        Occasion(0, 0, "live", "a"),
        HeldoutViewers(referee),
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
    assert sum(row["videos"] for row in told["by_class"].values()) == 6
    quarters = told["by_horizon"]
    assert [row["frames"] for row in quarters] == [list(span) for span in spans_of(FRAMES)]
    assert all(row["videos"] == 6 for row in quarters)
    # This referee's quarters get 100, 75, 50 and 25 points.
    assert [row["low"] for row in quarters] == [100.0, 75.0, 50.0, 25.0]
    assert [row["low_ci95"] for row in quarters[:1]] == [[100.0, 100.0]]
    assert line["evaluator"] is None
    assert line["picture_drift"]["conditions"] == 3
    assert set(line["picture_drift"]["ratio"]) == {"luma", "saturation", "motion", "sharpness", "flicker"}
    assert [row["conditions"] for row in line["picture_drift"]["by_horizon"]] == [3] * 4
    assert set(line["picture_drift"]["by_horizon"][3]["ratio"]) == set(line["picture_drift"]["ratio"])
    assert line["reward_mean"] == result.reward_mean
    assert line["referee_mean"] == result.referee_mean == told["low"], "the alarm watches the lower bound"


class TwoProbes:
    """Every video walks in one of two windows; the other probe failed its calibration."""

    name = "two-v1"

    def __init__(self) -> None:
        self.calibrations = {
            "walk": Calibration("walk", 1.0, 0.9, 0.8, "", Bounds(9, 1, 0)),
            "attack": Calibration("attack", None, None, None, "too few windows"),
        }

    def obeyed(self, frames_ThwC: NDArray[np.uint8], case: RefereeCase, window: int) -> Mapping[str, Bounds]:
        assert len(case.held_RK) > 0
        assert window == 10
        return {"walk": Bounds(1, 1, 0)}


def test_commanded_moves_are_counted_and_a_failed_probe_is_withheld(tmp_path: Path) -> None:
    conditions = write_tiny_conditions(tmp_path / "conditions", passing=1, heldout=2)
    conditions.manifest.config["clip"] = {"action_window": 10}
    bench = Bench(heldout={"conditions": 2, "samples": 3, "seed": 11})
    viewers = HeldoutViewers(actions=TwoProbes())
    occasion = Occasion(0, 0, "live", "a")
    result = evaluate(bench.world, conditions, Judges(BrightJudge()), bench.config, ONE, tmp_path, occasion, viewers)
    json.dumps(dict(result.line), allow_nan=False)
    assert result.line["actions"] == {
        "name": "two-v1",
        "obeyed": {"walk": Bounds(6, 6, 0).to_json()},
        "real": {"walk": Bounds(9, 1, 0).to_json()},
        "withheld": {"attack": "too few windows"},
    }


def test_the_checkouts_evaluators_and_all_that_they_lack(tmp_path: Path) -> None:
    folder = tmp_path / "checkout" / "evaluation" / "hud"
    folder.mkdir(parents=True)
    (folder / "metrics.py").write_text(
        "calls = 0\n"
        "def evaluate_clip(video_path, frames, states, fps):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    if calls == 3:\n"
        "        raise ValueError('no frame could be read')\n"
        "    return {'rvsa': {'low': 0.5}, 'coverage': 1.0}\n"
        "def att_acc(frames, secret):\n"
        "    return 1.0\n"
    )
    conditions = write_tiny_conditions(tmp_path / "conditions", passing=1, heldout=2)
    bench = Bench(heldout={"conditions": 2, "samples": 2, "seed": 11})
    viewers = HeldoutViewers(evaluator=StateplayEvaluator.open(tmp_path / "checkout"))
    judges, occasion = Judges(BrightJudge()), Occasion(0, 0, "live", "a")
    result = evaluate(bench.world, conditions, judges, bench.config, ONE, tmp_path, occasion, viewers)
    told = result.line["evaluator"]
    assert told["means"] == {"coverage": 1.0, "rvsa.low": 0.5}
    assert told["videos"] == {"coverage": 3, "rvsa.low": 3}
    assert told["missing"] == {
        "evaluate_clip": "failed: ValueError: no frame could be read (1 of 4 videos)",
        "Att-Acc": "asks for secret, which is not known here",
        "Move-Acc": "no function move_acc or move_accuracy below evaluation/",
    }


def test_who_looks_at_held_out_videos(tmp_path: Path) -> None:
    conditions = write_tiny_conditions(tmp_path / "conditions", passing=1, heldout=1)
    assert HeldoutViewers.of(HeldoutConfig(), conditions, ONE) == HeldoutViewers()
    assert HeldoutViewers.of(HeldoutConfig(conditions=4), conditions, ONE) == HeldoutViewers(), "clips of no known game"
    named = HeldoutViewers.of(HeldoutConfig(conditions=4, referee="sf3"), conditions, ONE)
    assert named.referee is not None
    assert named.evaluator is None
    with pytest.raises(UsageError, match="belong together"):
        HeldoutViewers.of(HeldoutConfig(conditions=4, evaluator="stateplay"), conditions, ONE)
    (tmp_path / "evaluation").mkdir()
    both = HeldoutConfig(conditions=4, evaluator="stateplay", evaluator_checkout=tmp_path)
    assert HeldoutViewers.of(both, conditions, ONE).evaluator is not None
