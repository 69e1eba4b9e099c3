"""Clips, audit, conditions, rollout, score, train-nft: by hand, one directory after the other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from stateplay_rl.errors import EXIT_INPUT, EXIT_USAGE
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import read_manifest
from tests.e2e.command_line import Arena, sprl, succeed, tree

BY_HAND = {"heldout__conditions": 0}


@dataclass(frozen=True)
class Run:
    """A run of one hand-made batch, and what it was made of. Tests that change it change it in order."""

    out: Path
    groups: Path
    scores: Path

    def policy(self, name: str) -> Path:
        return self.out / layout.policy_file(read_manifest(self.out).extra["policies"][name])


@pytest.fixture(scope="module")
def first(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("chain")
    groups, scores = arena.groups_and_scores(root, "--limit", 2)
    succeed(*arena.train(root / "run", "--groups", groups, "--scores", scores, **BY_HAND))
    return Run(root / "run", groups, scores)


def test_one_hand_made_batch(first: Run, arena: Arena) -> None:
    manifest = read_manifest(first.out, schema="run", verify_files=True)
    assert (manifest.extra["batches"], manifest.extra["ledger"]["trained"]) == (1, 2)
    (line,) = LineLog(first.out / layout.METRICS).read()
    assert (line["groups"], line["groups_failed"], line["skipped_steps"]) == (2, 0, 0)
    rolled = read_manifest(first.groups, schema="groups", verify_files=True)
    segment = read_manifest(first.out / "segments" / "000-hand", schema="segment", verify_files=True)
    assert segment.inputs["groups"].sha256 == rolled.sha256
    assert rolled.extra["policy_sha256"] != manifest.extra["policies"]["live"]
    assert segment.config["off_policy"] is False


def test_a_second_batch_goes_on_in_the_same_run(first: Run, arena: Arena, tmp_path: Path) -> None:
    """Each refusal leaves the run exactly as it was; the batch that fits is then taken."""
    before = tree(first.out)
    base, base_scores = arena.groups_and_scores(tmp_path / "base", "--skip", 2, "--limit", 2)
    again, again_scores = arena.groups_and_scores(tmp_path / "again", "--limit", 2, "--set", "batch=1")
    by_hand = ("--resume", "--groups")

    off = sprl(*arena.train(first.out, *by_hand, base, "--scores", base_scores, **BY_HAND))
    assert off.code == EXIT_INPUT
    assert "was sampled by policy" in off.text
    assert "--off-policy" in off.text
    consumed = sprl(*arena.train(first.out, *by_hand, again, "--scores", again_scores, **BY_HAND))
    assert consumed.code == EXIT_INPUT
    assert "was consumed by batch 0" in consumed.text
    others = sprl(*arena.train(first.out, *by_hand, base, "--scores", first.scores, **BY_HAND))
    assert others.code == EXIT_INPUT
    assert "sprl score" in others.text
    unresumed = sprl(*arena.train(first.out, "--groups", base, "--scores", base_scores, "--off-policy", **BY_HAND))
    assert unresumed.code == EXIT_USAGE
    assert "is finished" in unresumed.text
    assert tree(first.out) == before

    fits, fit_scores = arena.groups_and_scores(
        tmp_path / "fits", "--skip", 2, "--limit", 2, "--policy", first.policy("old")
    )
    assert read_manifest(fits).extra["policy_sha256"] == read_manifest(first.out).extra["policies"]["old"]
    command = arena.train(first.out, *by_hand, fits, "--scores", fit_scores, **BY_HAND)
    succeed(*command)
    manifest = read_manifest(first.out, schema="run", verify_files=True)
    assert (manifest.extra["batches"], manifest.extra["ledger"]["trained"]) == (2, 4)
    assert len(LineLog(first.out / layout.METRICS).read()) == 2
    # The earlier manifest is kept beside the new one.
    assert (first.out / layout.old_manifest(0)).is_file()
    with Ledger.open(first.out / layout.LEDGER, read_only=True) as ledger:
        assert [len(ledger.members(batch)) for batch in (0, 1)] == [2, 2]
    after = tree(first.out)
    assert "was already finished" in succeed(*command)
    assert tree(first.out) == after


def test_off_policy_groups_are_recorded(first: Run, arena: Arena, tmp_path: Path) -> None:
    groups, scores = arena.groups_and_scores(tmp_path, "--skip", 4, "--limit", 1)
    text = ("--resume", "--groups", groups, "--scores", scores, "--off-policy")
    succeed(*arena.train(first.out, *text, **BY_HAND))
    assert read_manifest(first.out).config["off_policy"] is True
    last = max((first.out / "segments").iterdir())
    assert read_manifest(last, schema="segment").config["off_policy"] is True
    assert LineLog(first.out / layout.METRICS).read()[-1]["off_policy"] is True


def test_groups_hold_what_the_spec_lists(first: Run) -> None:
    store = GroupStore(first.groups)
    for group_id in store.finished():
        group = store.read(group_id)
        group.verify()
        names = {path.name for path in group.folder.iterdir()}
        assert names >= {"group.json", "first_frame.png", "reference.mp4", "candidate_0.mp4", "candidate_2.safetensors"}
    config = json.loads(json.dumps(read_manifest(first.groups).config))
    assert config["sampling"]["steps"] == 2
