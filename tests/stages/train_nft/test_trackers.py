"""Trackers get flat numbers; only rank 0 has one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stateplay_rl.errors import EXIT_USAGE, MissingExtraError
from stateplay_rl.stages.train_nft import trackers
from stateplay_rl.stages.train_nft.trackers import TRACKER_FOLDER, NoTracker, make_tracker
from tests.stages.train_nft.helpers import ONE

LINE = {"batch": 3, "loss": {"nft": 0.5, "fm_real": None}, "r_histogram": [1, 2], "note": "text", "reward_mean": 41.5}


def test_nested_numbers_become_paths_and_the_rest_is_left_out() -> None:
    assert trackers._flat(LINE) == {"batch": 3.0, "loss/nft": 0.5, "reward_mean": 41.5}


def test_none_and_other_ranks_track_nothing(tmp_path: Path) -> None:
    for tracker in (
        make_tracker("none", tmp_path, ONE, "x"),
        make_tracker("tensorboard", tmp_path, replace(ONE, rank=1), "x"),
    ):
        assert isinstance(tracker, NoTracker)
        tracker.log(LINE, 0)
        tracker.finish()
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_writes_below_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    tracker = make_tracker("tensorboard", tmp_path, ONE, "nft_flr2e-05")
    tracker.log(LINE, 3)
    tracker.finish()
    (events,) = (tmp_path / TRACKER_FOLDER).rglob("events.out.tfevents.*")
    assert b"loss/nft" in events.read_bytes()


def test_a_missing_tracker_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "filter_trackers", lambda names, logging_dir: [])
    with pytest.raises(MissingExtraError, match="wandb") as caught:
        make_tracker("wandb", tmp_path, ONE, "x")
    assert caught.value.exit_code == EXIT_USAGE
    assert "pip install wandb" in caught.value.hint
    assert "tracker=none" in caught.value.hint
