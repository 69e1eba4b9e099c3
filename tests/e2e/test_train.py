"""`train-nft` on arena: every parameter mode, both gatings, seeds, the control, a dry run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.manifest import read_manifest
from tests.e2e.command_line import Arena, run_results, sprl, succeed, tree

ONE_BATCH = {"stage_conditions": 2, "heldout__conditions": 0}
GROUPS_OF_MODE = {
    "transition": {"transition"},
    "coupling": {"coupling_lora"},
    "joint": {"transition", "coupling_lora"},
    "full": {"backbone", "coupling", "transition", "state", "predictor"},
}


@pytest.mark.parametrize("mode", list(GROUPS_OF_MODE))
def test_each_mode_trains_its_own_parameters(arena: Arena, tmp_path: Path, mode: str) -> None:
    succeed(*arena.train(tmp_path / "run", "--mode", mode, **ONE_BATCH))
    manifest = read_manifest(tmp_path / "run", schema="run", verify_files=True)
    assert set(manifest.extra["parameters"]) == GROUPS_OF_MODE[mode]
    (line,) = LineLog(tmp_path / "run" / layout.METRICS).read()
    assert set(line["grad_norm"]) == GROUPS_OF_MODE[mode]
    assert all(value > 0 for value in line["grad_norm"].values())
    assert line["distance_live_reference"] > 0
    assert (line["loss"]["transition_real"] is None) is (mode == "coupling")
    assert line["loss"]["fm_real"] is not None
    # The exported policy can be rolled out again, and keeps its name.
    policy = tmp_path / "run" / layout.policy_file(manifest.extra["policies"]["live"])
    succeed(*arena.rollout(tmp_path / "groups", "--limit", 1, "--mode", mode, "--policy", policy))
    assert read_manifest(tmp_path / "groups").extra["policy_sha256"] == manifest.extra["policies"]["live"]


def test_guard_leaves_groups_out_and_books_them(arena: Arena, tmp_path: Path) -> None:
    guard = {"loss.gating": "guard", "loss.guard_best_points": 100}
    succeed(*arena.train(tmp_path / "run", **ONE_BATCH, **guard))
    manifest = read_manifest(tmp_path / "run", schema="run", verify_files=True)
    (line,) = LineLog(tmp_path / "run" / layout.METRICS).read()
    assert line["groups_gated"] == manifest.extra["ledger"]["gated"] == 2
    assert manifest.extra["optimizer_steps"] == 0


@pytest.mark.slow
def test_the_seed_decides_every_byte(arena: Arena, tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        succeed(*arena.train(tmp_path / name, "--seed", seed, stage_conditions=3, heldout__conditions=1))
    first, same, other = (run_results(tmp_path / name) for name in "abc")
    assert first == same
    assert first["live"] != other["live"]
    assert first["groups"].keys().isdisjoint(other["groups"])


def test_the_control_trains_on_permuted_scores(arena: Arena, tmp_path: Path) -> None:
    succeed(*arena.train(tmp_path / "run", **ONE_BATCH))
    succeed(*arena.train(tmp_path / "control", **ONE_BATCH, control="shuffled_rewards"))
    run, control = run_results(tmp_path / "run"), run_results(tmp_path / "control")
    assert run["verdicts"] == control["verdicts"]
    lines = [LineLog(tmp_path / name / layout.METRICS).read()[0] for name in ("run", "control")]
    assert lines[0]["reward_mean"] == lines[1]["reward_mean"]
    assert run["live"] != control["live"]


def test_a_dry_run_writes_nothing(arena: Arena, tmp_path: Path) -> None:
    before = tree(arena.conditions)
    text = succeed(*arena.train(tmp_path / "run", "--dry-run"))
    for part in ("3 of 2 conditions", "15 candidates", "referee", "evaluations", "GiB"):
        assert part in text
    assert list(tmp_path.iterdir()) == []
    assert tree(arena.conditions) == before
    many = sprl(*arena.train(tmp_path / "run", "--dry-run", stage_conditions=99))
    assert many.code == 3
    assert "stage_conditions=20" in many.text
