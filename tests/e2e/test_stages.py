"""Stage A, an extension and stage C through the real command line, with a plug-in standing in for the student."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from stateplay_rl.config.base import load_config
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.errors import EXIT_CHECK, EXIT_INPUT, EXIT_USAGE
from stateplay_rl.stages.train_nft.permissions import preflight_config
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.manifest import read_manifest
from tests.e2e.command_line import Arena, sprl, succeed, tree
from tests.stages.train_nft.gates import write_gate, write_preflight

SMALL = {"stage_conditions": 2, "heldout__conditions": 0, "sampling__candidates": 2}
STAND_IN = ("--judge", "tests.e2e.plug_in_judges:StandIn")


@pytest.fixture(scope="module")
def run(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stages") / "run"
    text = succeed(*arena.train(out, **SMALL))
    assert "2 of 2 groups judged" in text
    return out


def test_the_whole_chain(arena: Arena, run: Path, tmp_path: Path) -> None:
    gate = write_gate(tmp_path / "reward_model")
    text = succeed(*arena.train(run, "--extend", 3, **SMALL))
    assert "segment 001-a+3" in text
    stage_c = ("--stage", "c", *STAND_IN, "--reward-model", gate)
    settings = {**SMALL, "stage_c_conditions": 2}
    before = tree(run)
    plan = succeed(*arena.train(run, *stage_c, "--dry-run", **settings))
    assert "stage C: 2 of 20 conditions of the pass, from batch 3" in plan
    assert "gate" in plan
    assert "passed" in plan
    for more, code, what in (
        (("--stage", "c", *STAND_IN), EXIT_CHECK, "needs the gate"),
        (("--stage", "c", "--judge", "referee", "--reward-model", gate), EXIT_CHECK, "was passed by judge protocol"),
        ((*stage_c, "--set", "run_mode=production"), EXIT_CHECK, "preflight"),
        ((*stage_c, "--set", "mode=production"), EXIT_USAGE, "run_mode: production"),
        ((*stage_c, "--set", "mode=coupling"), EXIT_USAGE, "mode: was 'transition', now 'coupling'"),
        ((*stage_c, "--overwrite"), EXIT_USAGE, "go on with one"),
        (("--extend", 99), EXIT_INPUT, "15 conditions of pool 'pass' are left"),
    ):
        result = sprl(*arena.train(run, *more, **settings))
        assert (result.code, what in result.text) == (code, True), result.text
    assert tree(run) == before
    text = succeed(*arena.train(run, *stage_c, **settings))
    assert "segment 002-c" in text
    assert "13 conditions left in the pass" in text
    manifest = read_manifest(run, schema="run", verify_files=True)
    assert manifest.extra["batches"] == 4
    metrics = LineLog(run / layout.METRICS).read()
    assert [(line["stage"], line["groups"]) for line in metrics] == [("a", 2), ("a", 2), ("a", 1), ("c", 2)]
    # The student's scores train; the game itself is watched beside them.
    assert [line["referee_mean"] is None for line in metrics] == [True, True, True, False]
    succeed("verify", "dir", run, "--out", tmp_path / "verify")


def test_a_forced_stage_is_marked(arena: Arena, tmp_path: Path) -> None:
    out = tmp_path / "run"
    succeed(*arena.train(out, **SMALL))
    text = succeed(*arena.train(out, "--stage", "c", *STAND_IN, "--force-without-gate", **SMALL, stage_c_conditions=1))
    assert "smoke" in text
    assert read_manifest(out).extra["smoke"] is True
    assert sprl(*arena.train(tmp_path / "new", "--force-without-gate", **SMALL)).code == EXIT_USAGE


def test_production_needs_the_preflight_of_this_very_config(arena: Arena, tmp_path: Path) -> None:
    production = (*arena.train(tmp_path / "run", **SMALL), "--set", "run_mode=production")
    config = load_config(TrainNftConfig, None, [*settings_of(production)], {"judge.name": "referee"})
    config = config.model_copy(update={"audit": arena.audit})
    good = write_preflight(tmp_path / "good", preflight_config(config))
    for name, preflight in (
        ("failed", write_preflight(tmp_path / "failed", preflight_config(config), passed=False)),
        ("other kind", write_preflight(tmp_path / "other", preflight_config(config), kind="install")),
        ("other config", write_preflight(tmp_path / "config", "0" * 64)),
    ):
        result = sprl(*production, "--set", f"preflight={preflight}")
        assert result.code == EXIT_CHECK, (name, result.text)
    assert not (tmp_path / "run").exists()
    without = sprl(*arena.train(tmp_path / "run", **SMALL), "--set", "run_mode=production")
    assert (without.code, "needs a passed preflight" in without.text) == (EXIT_CHECK, True)
    succeed(*production, "--set", f"preflight={good}")


def settings_of(command: tuple[str, ...]) -> list[str]:
    return [value for flag, value in pairwise(command) if flag == "--set"]


def test_a_dry_run_of_a_hand_made_batch(arena: Arena, tmp_path: Path) -> None:
    """It needs none of stage A's 2,000 conditions."""
    groups, scores = arena.groups_and_scores(tmp_path, "--limit", 2)
    command = ("train-nft", arena.conditions, "--groups", groups, "--scores", scores, "--out", tmp_path / "run")
    text = succeed(*command, "--dry-run")
    assert "one hand-made batch: 2 of 20 conditions" in text
    assert "2 groups, judged already" in text
    assert not (tmp_path / "run").exists()
