"""`sprl verify resume`: the kill drill on the user's own config, and faults of a resume that it must find."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from stateplay_rl.checks import drill_judge, kill_drill
from stateplay_rl.config.base import load_config
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.verify import ResumeConfig
from stateplay_rl.errors import CheckError, InputError
from stateplay_rl.stages import verify_resume
from stateplay_rl.stages.train_nft.permissions import preflight_config
from stateplay_rl.stores import layout
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import read_manifest
from tests.e2e.command_line import Arena, sprl, succeed


def settings(arena: Arena, **changed: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "audit": str(arena.audit),
        "stage_conditions": 16,
        "conditions_per_batch": 2,
        "sampling": {"candidates": 2, "steps": 2, "candidates_per_call": 2},
        "judge": {"name": "referee"},
        "optimizer": {"samples_per_step": 4, "inner_epochs": 1},
        "tracker": "none",
        "threads": 1,
    }
    return {**values, **changed}


def config_file(folder: Path, arena: Arena, **changed: Any) -> Path:
    file = folder / "train.yaml"
    file.write_text(yaml.safe_dump(settings(arena, **changed)))
    return file


def drill_of(arena: Arena, folder: Path, **changed: Any) -> ResumeConfig:
    train = load_config(TrainNftConfig, config_file(folder, arena, **changed))
    return ResumeConfig(train=train, conditions=arena.conditions, kills=1)


@pytest.mark.slow
def test_a_drill_of_the_users_config(arena: Arena, tmp_path: Path) -> None:
    file, out = config_file(tmp_path, arena), tmp_path / "record"
    text = succeed("verify", "resume", file, "--conditions", arena.conditions, "--kills", 2, "--out", out)
    record = json.loads((out / layout.VERIFY).read_text())
    assert record["passed"], text
    assert [line["name"] for line in record["lines"]] == [
        "undisturbed run",
        "killed and resumed",
        "results",
        "conditions",
        "leftovers",
        "directory",
    ]
    assert len(record["measures"]["kills"]) == 2
    extra = read_manifest(out, verify_files=True).extra
    assert (extra["kind"], extra["passed"], extra["processes"]) == ("resume", True, 1)
    assert extra["train_config_sha256"] == preflight_config(load_config(TrainNftConfig, file))
    assert not out.with_name("record-runs").exists()


@pytest.fixture(scope="module")
def pair(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that nobody shot, where a drill would have left them."""
    root = tmp_path_factory.mktemp("drill")
    for name in ("whole", "killed-0"):
        succeed(*arena.train(root / name, stage_conditions=3, heldout__conditions=0))
    return root


def drilled(arena: Arena, folder: Path, tmp_path: Path) -> verify_resume._Drilled:
    made = verify_resume._Drilled(drill_of(arena, tmp_path), kill_drill.Drill((), tmp_path / "log"), folder)
    made.lives = 1
    return made


def failed(arena: Arena, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    made = drilled(arena, folder, tmp_path)
    monkeypatch.setattr(verify_resume, "_undisturbed", lambda _: "given")
    monkeypatch.setattr(verify_resume, "_kill_and_resume", lambda _: "given")
    return {line.name for line in verify_resume._lines(made) if line.status == "failed"}


def copied(pair: Path, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(pair, tmp_path / "drill")
    return tmp_path / "drill"


def rehash(run: Path, name: str) -> None:
    """The manifest agrees with a changed file again: only the comparison can find it."""
    from stateplay_rl.stores.atomic import sha256_file

    file = run / layout.MANIFEST
    manifest = json.loads(file.read_text())
    manifest["files"][name] = {"size": (run / name).stat().st_size, "sha256": sha256_file(run / name)}
    file.write_text(json.dumps(manifest))


def test_equal_runs_pass(arena: Arena, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed(arena, pair, tmp_path, monkeypatch) == set()


def test_another_number_in_the_metrics_is_found(
    arena: Arena, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(pair, tmp_path)
    metrics = folder / "killed-0" / layout.METRICS
    metrics.write_text(metrics.read_text().replace('"batch": 1', '"batch": 2', 1))
    rehash(folder / "killed-0", layout.METRICS)
    assert failed(arena, folder, tmp_path, monkeypatch) == {"results"}


def test_a_condition_of_another_batch_is_found(
    arena: Arena, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(pair, tmp_path)
    real = Ledger.members

    def members(ledger: Ledger, batch: int) -> Any:
        found = real(ledger, batch)
        return tuple(replace(entry, condition_id="again") for entry in found) if "killed" in str(ledger.path) else found

    monkeypatch.setattr(Ledger, "members", members)
    assert failed(arena, folder, tmp_path, monkeypatch) == {"conditions"}


def test_a_half_written_file_is_found(
    arena: Arena, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(pair, tmp_path)
    layout.temp_name(folder / "killed-0" / "metrics.jsonl", "1").write_text("half")
    assert failed(arena, folder, tmp_path, monkeypatch) == {"leftovers"}


def test_a_damaged_file_is_found(arena: Arena, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(pair, tmp_path)
    log = folder / "killed-0" / layout.TIMINGS
    log.write_bytes(log.read_bytes()[:-1])
    rehash(folder / "killed-0", layout.TIMINGS)
    assert failed(arena, folder, tmp_path, monkeypatch) == {"directory"}
    video = next((folder / "killed-0").rglob("candidate_0.mp4"))
    video.write_bytes(video.read_bytes()[:-1])
    assert failed(arena, folder, tmp_path, monkeypatch) == {"results", "directory"}


def test_a_run_that_does_not_end_by_itself_is_all_that_is_said(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(drill: Any, out: Path, *, resume: bool = False) -> float:
        raise CheckError("exit code 3", "see the log")

    monkeypatch.setattr(kill_drill.Drill, "run", stop)
    (line,) = verify_resume._lines(drilled(arena, tmp_path, tmp_path))
    assert (line.name, line.status) == ("undisturbed run", "failed")


def test_a_drill_in_which_no_kill_hit_proves_nothing(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_resume, "_undisturbed", lambda _: "given")
    monkeypatch.setattr(kill_drill.Drill, "run", lambda drill, out, *, resume=False: 1.0)
    monkeypatch.setattr(kill_drill.Drill, "shoot", lambda *_: 0)
    lines = {line.name: line for line in verify_resume._lines(drilled(arena, tmp_path, tmp_path))}
    assert {name for name, line in lines.items() if line.status == "failed"} == {"killed and resumed"}
    assert "--batches" in lines["killed and resumed"].todo
    assert [line.status for line in lines.values()][2:] == ["skipped"] * 4


def test_runs_of_an_earlier_drill_are_not_overwritten(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "record-runs").mkdir()
    result = sprl(
        "verify", "resume", config_file(tmp_path, arena), "--conditions", arena.conditions, "--out", tmp_path / "record"
    )
    assert (result.code, "record-runs" in result.text) == (2, True)
    assert not (tmp_path / "record").exists()


PLANTED = {
    "undisturbed run": test_a_run_that_does_not_end_by_itself_is_all_that_is_said,
    "killed and resumed": test_a_drill_in_which_no_kill_hit_proves_nothing,
    "results": test_another_number_in_the_metrics_is_found,
    "conditions": test_a_condition_of_another_batch_is_found,
    "leftovers": test_a_half_written_file_is_found,
    "directory": test_a_damaged_file_is_found,
}


def test_every_line_has_a_planted_fault(arena: Arena, pair: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(verify_resume, "_undisturbed", lambda _: "given")
    monkeypatch.setattr(verify_resume, "_kill_and_resume", lambda _: "given")
    assert list(PLANTED) == [line.name for line in verify_resume._lines(drilled(arena, pair, tmp_path))]


def test_a_paid_judge_is_never_asked(arena: Arena, tmp_path: Path) -> None:
    short = verify_resume.short_config(drill_of(arena, tmp_path, judge={"name": "openai"}))
    assert short.judge.name == drill_judge.NAME
    assert short.stage_conditions == 4
    assert short.run_mode == "standard"


def test_too_few_conditions_for_a_batch(arena: Arena, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a batch takes 28"):
        verify_resume.short_config(drill_of(arena, tmp_path, conditions_per_batch=28, stage_conditions=28))


def test_conditions_that_are_not_there(tmp_path: Path, arena: Arena) -> None:
    result = sprl("verify", "resume", config_file(tmp_path, arena), "--conditions", tmp_path / "none")
    assert result.code == 3
    assert "build-conditions" in result.text


def test_a_command_that_fails_by_itself_is_said_with_its_last_lines(tmp_path: Path) -> None:
    drill = kill_drill.Drill(("train-nft", str(tmp_path / "none")), tmp_path / "log")
    with pytest.raises(CheckError, match=r"exit code 4: .*has no audit"):
        drill.run(tmp_path / "run")


def test_all_descendants_are_shot(tmp_path: Path) -> None:
    """The grandchild has a session of its own, as a launcher's ranks have."""
    child = f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True); open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); time.sleep(60)"  # noqa: E501
    process = subprocess.Popen([sys.executable, "-c", child])
    while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
        assert process.poll() is None
    grandchild = int((tmp_path / "pid").read_text())
    assert set(kill_drill.family(process.pid)) == {process.pid, grandchild}
    kill_drill.kill_family(process)
    deadline = time.monotonic() + 30
    while running(grandchild):
        assert time.monotonic() < deadline, "the grandchild lives"
        time.sleep(0.05)


def running(pid: int) -> bool:
    """Whether a process is there and no mere entry that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_starts_take_their_ranks_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, after a shot that hit one, then two again."""
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: commands.append(command))
    drill = kill_drill.Drill(("train-nft",), tmp_path / "log", processes=(2, 1))
    for number in range(3):
        drill.start(tmp_path / "run", resume=number > 0)
        drill.kills.append(kill_drill.Kill(1.0, 0, 0))
    assert [("--nproc_per_node" in c, "--resume" in c) for c in commands] == [
        (True, False),
        (False, True),
        (True, True),
    ]
