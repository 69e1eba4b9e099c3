"""Conditions without a video: no reference, no anchors, everything else as usual."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.manifest import read_manifest
from tests.e2e.command_line import ROOT, Arena, sprl, succeed

REAL_CLIPS = Path(os.environ.get("STATEPLAY_CLIPS", ROOT.parent / "shared" / "stateplay_clips"))


@pytest.fixture(scope="module")
def silent(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Arena:
    """Arena's first frames, buttons and prompts as clip folders without a video."""
    root = tmp_path_factory.mktemp("silent")
    store = ConditionStore.open(arena.conditions)
    for number, record in enumerate(store.records[:4]):
        folder = root / "clips" / f"clip_{number}"
        folder.mkdir(parents=True)
        shutil.copy(store.root / layout.frame_file(record.condition_id), folder / "first_frame.png")
        clip = store.clip_path(record)
        assert clip is not None
        shutil.copy(clip.parent / "actions.parquet", folder)
        facts = {"distribution": record.distribution, "strategy": record.strategy, "category": record.npc_category}
        (folder / "metadata.json").write_text(json.dumps({**facts, "prompt": record.prompt}))
        (folder / "prompt.txt").write_text(record.prompt)
    command = ("build-conditions", "--clips", root / "clips", "--preset", "arena", "--heldout", 0, "--workers", 1)
    succeed(*command, "--out", root / "conditions", "-q")
    return Arena(root / "clips", arena.audit, root / "conditions", root / "encoded")


def test_groups_have_no_reference(silent: Arena, tmp_path: Path) -> None:
    text = succeed(*silent.rollout(tmp_path / "groups", "--limit", 2))
    assert "2 groups have no reference video" in text
    store = GroupStore(tmp_path / "groups")
    for group_id in store.finished():
        group = store.read(group_id)
        assert group.reference_video() is None
        assert not (group.folder / layout.REFERENCE_VIDEO).exists()
    assert "2 groups have no reference video" in succeed(*silent.rollout(tmp_path / "groups", "--limit", 2, "--resume"))
    # The referee needs the first frame, the buttons and the prompt only.
    succeed("score", tmp_path / "groups", "--judge", "referee", "--out", tmp_path / "scores", "-q")
    assert read_manifest(tmp_path / "scores").extra["scored"] == 2


def test_training_leaves_the_anchors_out(silent: Arena, tmp_path: Path) -> None:
    succeed(*silent.train(tmp_path / "run", stage_conditions=2, heldout__conditions=0))
    (line,) = LineLog(tmp_path / "run" / layout.METRICS).read()
    assert line["loss"]["fm_real"] is None
    assert line["loss"]["transition_real"] is None
    assert line["loss"]["nft"] is not None
    assert line["picture_real"] is None
    assert line["optimizer_steps"] > 0
    assert not list(silent.encoded.rglob("*.safetensors"))


def test_the_real_clips_are_refused_by_a_world_of_another_size(arena: Arena, tmp_path: Path) -> None:
    if not REAL_CLIPS.is_dir():
        pytest.skip(f"no clips in {REAL_CLIPS} (STATEPLAY_CLIPS)")
    succeed("build-conditions", "--clips", REAL_CLIPS, "--heldout", 0, "--workers", 1, "--out", tmp_path / "real", "-q")
    assert len(ConditionStore.open(tmp_path / "real").records) == 8
    result = sprl("rollout", tmp_path / "real", "--world", "arena", "--out", tmp_path / "groups", "-q")
    assert result.code == 3
    assert "832x480" in result.text
    assert "build-conditions" in result.text
