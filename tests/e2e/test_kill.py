"""SIGKILL at several points of `rollout` and `train-nft`: the resumed result is that of a run without a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import read_manifest
from tests.e2e.command_line import Arena, KillPoint, run_elsewhere, run_results, run_with_kills

pytestmark = pytest.mark.slow

ROLLOUT_POINTS = [
    KillPoint("*/candidate_0.safetensors", 1),
    KillPoint("*/candidate_2.mp4", 3),
    KillPoint(layout.GROUPS, 1),
]
TRAIN_POINTS = [
    KillPoint(f"heldout/0-live/*/{layout.GROUP}", 1),
    KillPoint(f"segments/*/{layout.VERDICTS}", 2, lines=True),
    KillPoint(layout.METRICS, 1, lines=True),
    KillPoint(f"segments/*/groups/*/{layout.GROUP}", 4),
    KillPoint(f"{layout.CHECKPOINTS_FOLDER}/step-2", 1),
    KillPoint(f"{layout.POLICY_FOLDER}/*.safetensors", 1),
]


def groups_of(folder: Path) -> dict[str, str]:
    """Every file of a groups/ directory by its hash; the manifest itself holds times."""
    files = read_manifest(folder, schema="groups", verify_files=True).files
    return {name: ref.sha256 for name, ref in files.items()}


def assert_same(killed: dict[str, Any], whole: dict[str, Any]) -> None:
    """Part by part: the message names the part that differs."""
    assert killed.keys() == whole.keys()
    for name, value in whole.items():
        assert killed[name] == value, name


@pytest.mark.parametrize("seed", [1])
def test_rollout(arena: Arena, tmp_path: Path, seed: int) -> None:
    more = ("--limit", 4)
    whole = run_elsewhere(*arena.rollout(tmp_path / "whole", *more))
    assert whole.code == 0, whole.text
    killed = tmp_path / "killed"
    kills = run_with_kills(arena.rollout(killed, *more), killed, ROLLOUT_POINTS, seed)
    assert kills >= 2
    assert groups_of(killed) == groups_of(tmp_path / "whole")


@pytest.mark.parametrize("seed", [2])
def test_train_nft(arena: Arena, tmp_path: Path, seed: int) -> None:
    whole = run_elsewhere(*arena.train(tmp_path / "whole"))
    assert whole.code == 0, whole.text
    killed = tmp_path / "killed"
    kills = run_with_kills(arena.train(killed), killed, TRAIN_POINTS, seed)
    assert kills >= 4
    assert_same(run_results(killed), run_results(tmp_path / "whole"))


def test_a_hand_made_batch(arena: Arena, tmp_path: Path) -> None:
    """The kills come before and after its checkpoint: the second resume has nothing left to train."""
    groups, scores = arena.groups_and_scores(tmp_path, "--limit", 2)
    by_hand = ("--groups", groups, "--scores", scores)
    whole = run_elsewhere(*arena.train(tmp_path / "whole", *by_hand, heldout__conditions=0))
    assert whole.code == 0, whole.text
    killed = tmp_path / "killed"
    points = [
        KillPoint(f"segments/*/{layout.VERDICTS}", 1, lines=True),
        KillPoint(f"{layout.CHECKPOINTS_FOLDER}/step-1", 1),
    ]
    command = arena.train(killed, *by_hand, heldout__conditions=0)
    run_with_kills(command, killed, points, seed=3)
    assert_same(run_results(killed), run_results(tmp_path / "whole"))
