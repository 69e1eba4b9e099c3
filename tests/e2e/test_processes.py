"""One process or two: the same weights and the same ledger, with batches that do not divide."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.manifest import read_manifest
from tests.e2e.command_line import Arena, run_elsewhere, run_results

pytestmark = pytest.mark.slow
BATCHES = 3


def live(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / layout.policy_file(read_manifest(run).extra["policies"]["live"]))


def test_two_processes_train_the_same_weights(arena: Arena, tmp_path: Path) -> None:
    for count in (1, 2):
        result = run_elsewhere(*arena.train(tmp_path / str(count)), processes=count)
        assert result.code == 0, result.text
        assert result.text.count("optimizer steps") == 1
    one, two = live(tmp_path / "1"), live(tmp_path / "2")
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= 1e-6
    first, second = run_results(tmp_path / "1"), run_results(tmp_path / "2")
    assert first["ledger"] == second["ledger"]
    assert first["groups"].keys() == second["groups"].keys()
    metrics = [LineLog(tmp_path / name / layout.METRICS).read() for name in ("1", "2")]
    assert [len(lines) for lines in metrics] == [BATCHES, BATCHES]
    assert [line["groups"] for line in metrics[1]] == [2, 2, 1]
    assert metrics[0][-1]["optimizer_steps"] == metrics[1][-1]["optimizer_steps"]
    assert read_manifest(tmp_path / "2", verify_files=True).world_size == 2


def test_two_processes_roll_out_the_same_groups(arena: Arena, tmp_path: Path) -> None:
    for count in (1, 2):
        result = run_elsewhere(*arena.rollout(tmp_path / str(count), "--limit", 3), processes=count)
        assert result.code == 0, result.text
        assert result.text.count("3 groups, 9 candidates") == 1
    files = [read_manifest(tmp_path / name, schema="groups", verify_files=True).files for name in ("1", "2")]
    one, two = ({name: ref.sha256 for name, ref in found.items()} for found in files)
    one.pop(layout.CONFIG), two.pop(layout.CONFIG)
    assert one == two


def test_an_error_reaches_every_process(arena: Arena, tmp_path: Path) -> None:
    """No rank waits for ever for one that has stopped."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    result = run_elsewhere(*arena.train(tmp_path / "out"), processes=2)
    assert result.code != 0
    assert "was not written by sprl" in result.text
    assert (tmp_path / "out" / "mine.txt").read_text() == "precious"
