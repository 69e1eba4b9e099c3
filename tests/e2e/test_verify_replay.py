"""`verify dir` computes again: one score and one batch from what is stored; planted faults that no hash shows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.arena.serve_faults import FaultPlan
from stateplay_rl.stages import verify_replay
from stateplay_rl.stages.train_nft.update import Updater
from stateplay_rl.stages.verify_replay import replay_lines
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.stores.scores import ScoreRow, ScoreTable
from tests.arena.test_serve import serving
from tests.e2e.command_line import Arena, succeed


@pytest.fixture(scope="module")
def run(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("replayed") / "run"
    succeed(*arena.train(out, stage_conditions=4, heldout__conditions=0, optimizer__inner_epochs=2))
    return out


def statuses(path: Path, *search: Path) -> dict[str, tuple[str, str]]:
    return {line.name: (line.status, line.detail) for line in replay_lines(path, search)}


def reseal(folder: Path) -> None:
    """Every hash agrees again: only computing shows the fault."""
    file = folder / layout.MANIFEST
    manifest = json.loads(file.read_text())
    for name, ref in manifest["files"].items():
        ref.update(size=(folder / name).stat().st_size, sha256=sha256_file(folder / name))
    file.write_text(json.dumps(manifest))


def changed_scores(file: Path) -> None:
    table = ScoreTable.read(file)
    rows = [ScoreRow(**{**vars(row), "score": (row.score or 0) / 2 + 1}) for row in table.rows]
    ScoreTable(rows).write(file)


def test_a_run_replays_its_score_and_its_batch(arena: Arena, run: Path, tmp_path: Path) -> None:
    before = sorted(path.relative_to(run) for path in run.rglob("*"))
    found = statuses(run)
    assert {name: status for name, (status, _) in found.items()} == {
        "replay: one score": "passed",
        "replay: one batch": "passed",
    }, found
    assert "batch 1 trained again" in found["replay: one batch"][1]
    assert "0.0e+00 of its own distance" in found["replay: one batch"][1]
    assert sorted(path.relative_to(run) for path in run.rglob("*")) == before
    text = succeed("verify", "dir", run, "--out", tmp_path / "record")
    assert "replay: one batch" in text
    text = succeed("verify", "dir", run, "--no-replay", "--out", tmp_path / "short")
    assert "replay:" not in text


def test_scores_that_the_judge_never_gave_are_found(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (segment,) = (copy / layout.SEGMENTS_FOLDER).iterdir()
    changed_scores(segment / layout.SCORES)
    reseal(segment)
    assert statuses(segment)["replay: one score"][0] == "failed"


def test_weights_that_the_batch_does_not_lead_to_are_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update is another one than it was: as if code or settings had changed without a trace."""
    real = Updater.run

    def half(updater: Updater, steps: Any, batch: int, per_pass: int) -> Any:
        return real(updater, steps[: len(steps) // 2], batch, per_pass)

    monkeypatch.setattr(Updater, "run", half)
    status, detail = statuses(run)["replay: one batch"]
    assert (status, "trained again it ends" in detail) == ("failed", True)


def test_verdicts_that_were_changed_afterwards_are_found(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (segment,) = (copy / layout.SEGMENTS_FOLDER).iterdir()
    lines = [json.loads(line) for line in (segment / layout.VERDICTS).read_text().splitlines()]
    for line in lines:
        line["scores"] = [float(90 * (k % 2)) for k in range(len(line["scores"]))]
    (segment / layout.VERDICTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = json.loads((copy / layout.MANIFEST).read_text())
    found = verify_replay.read_manifest(copy)
    assert found.run_id == manifest["run_id"]
    # Moved: inputs are found by hash.
    conditions = json.loads((run / layout.MANIFEST).read_text())["inputs"]["conditions"]["path"]
    assert statuses(copy, (run / conditions).resolve())["replay: one batch"][0] == "failed"


def test_a_paid_score_is_read_from_its_stored_answer(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_RUN_ROOT", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-replay-00112233")
    succeed(*arena.rollout(tmp_path / "groups", "--limit", 1))
    with serving(FaultPlan()) as server:
        succeed("score", tmp_path / "groups", "--judge", "openai", "--base-url", server.base_url, "--out", "scores")
    status, detail = statuses(tmp_path / "scores")["replay: one score"]
    assert (status, "from the stored answer" in detail) == ("passed", True)
    changed_scores(tmp_path / "scores" / layout.SCORES)
    reseal(tmp_path / "scores")
    assert statuses(tmp_path / "scores")["replay: one score"][0] == "failed"
    shutil.rmtree(tmp_path / "requests")
    assert statuses(tmp_path / "scores")["replay: one score"][0] == "skipped"


def test_no_code_that_a_directory_names_is_loaded(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (segment,) = (copy / layout.SEGMENTS_FOLDER).iterdir()
    manifest = json.loads((segment / layout.MANIFEST).read_text())
    manifest["config"]["judge"]["name"] = "antigravity:Anything"
    (segment / layout.MANIFEST).write_text(json.dumps(manifest))
    assert statuses(segment)["replay: one score"][0] == "skipped"
