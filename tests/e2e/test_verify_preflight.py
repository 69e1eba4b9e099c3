"""`sprl verify preflight`: a sound config passes; each planted fault fails exactly its line, and says what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateplay_rl.checks import preflight_world
from stateplay_rl.config.base import load_config
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.verify import PreflightConfig
from stateplay_rl.errors import CheckError
from stateplay_rl.judges.base import failed as failed_verdict
from stateplay_rl.reward_model import judge as student_judge
from stateplay_rl.reward_model import reading
from stateplay_rl.stages import verify_preflight
from stateplay_rl.stages.preflight.flight import Flight
from stateplay_rl.stages.train_nft.permissions import require_preflight
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.worlds.native.world import NativeWorld
from tests.e2e.command_line import Arena, sprl, succeed
from tests.e2e.test_verify_resume import config_file, settings
from tests.reward_model.arena_groups import write_tiny_model
from tests.reward_model.sealed_student import seal

STATUSES = {"gate and student": "skipped", "kill and resume": "skipped"}


def flight(arena: Arena, folder: Path, **changed: Any) -> PreflightConfig:
    train = load_config(TrainNftConfig, config_file(folder, arena, **changed))
    return PreflightConfig(train=train, conditions=arena.conditions, sample=2)


def lines_of(config: PreflightConfig, tmp_path: Path) -> dict[str, Any]:
    return {line.name: line for line in verify_preflight.run(config, tmp_path / "record").lines}


def failed(lines: dict[str, Any]) -> set[str]:
    return {name for name, line in lines.items() if line.status == "failed"}


def test_a_sound_config_passes_and_production_mode_takes_it(arena: Arena, tmp_path: Path) -> None:
    file = config_file(tmp_path, arena)
    out = tmp_path / "record"
    text = succeed("verify", "preflight", file, "--conditions", arena.conditions, "--sample", 2, "--out", out)
    record = json.loads((out / layout.VERIFY).read_text())
    for line in record["lines"]:
        assert line["status"] == STATUSES.get(line["name"], "passed"), line
    assert "-> run sprl verify resume" in text
    extra = read_manifest(out, schema="verify", verify_files=True).extra
    assert (extra["kind"], extra["passed"]) == ("preflight", True)
    config = load_config(TrainNftConfig, file)
    # The record is of run_mode standard: production is another config, and asks for a drill as well.
    with pytest.raises(CheckError, match="of another config"):
        require_preflight(config.model_copy(update={"run_mode": "production", "preflight": out}))
    assert not list(tmp_path.glob(".preflight-*"))


def seal_drill(folder: Path, train: TrainNftConfig, **extra: Any) -> Path:
    from stateplay_rl.config.verify import InstallConfig
    from stateplay_rl.stages.train_nft.permissions import preflight_config
    from stateplay_rl.stores.manifest import OutputDirectory

    facts = {"kind": "resume", "passed": True, "processes": 2, "train_config_sha256": preflight_config(train), **extra}
    with OutputDirectory.open(
        folder, schema="verify", version=layout.SCHEMAS["verify"], command="verify resume", config=InstallConfig(),
        inputs={}, resume=False, overwrite=True,
    ) as directory:  # fmt: skip
        directory.seal(extra=facts)
    return folder


def test_production_mode_trains_after_a_passed_preflight_with_its_drill(arena: Arena, tmp_path: Path) -> None:
    config = flight(arena, tmp_path, run_mode="production", stage_conditions=2)
    drill = seal_drill(tmp_path / "drill", config.train)
    summary = verify_preflight.run(config.model_copy(update={"resume_record": drill}), tmp_path / "record")
    assert summary.passed, summary.failed
    train = ("train-nft", arena.conditions, "--config", tmp_path / "train.yaml", "--out", tmp_path / "run", "-q")
    refused = sprl(*train)
    assert (refused.code, "preflight" in refused.text) == (4, True)
    succeed(*train, "--set", f"preflight={tmp_path / 'record'}")
    other = sprl(*train[:5], tmp_path / "other", "-q", "--seed", 5, "--set", f"preflight={tmp_path / 'record'}")
    assert (other.code, "of another config" in other.text) == (4, True)


@pytest.mark.parametrize("fault", [{"passed": False}, {"kind": "install"}, {"train_config_sha256": "0" * 64}])
def test_a_drill_that_proves_nothing_fails_its_line(arena: Arena, tmp_path: Path, fault: dict[str, Any]) -> None:
    config = flight(arena, tmp_path)
    record = seal_drill(tmp_path / "drill", config.train, **fault)
    line = run_line("kill and resume", config.model_copy(update={"resume_record": record}), tmp_path)
    assert line.status == "failed"
    assert "sprl verify resume" in line.todo


def run_line(name: str, config: PreflightConfig, tmp_path: Path, *before: str) -> Any:
    """One item of the checklist, after those that it needs."""
    from stateplay_rl.checks.lines import run_check
    from stateplay_rl.worlds.load import world_spec
    from stateplay_rl.worlds.world_files import resolve_world

    world = resolve_world(config.train.world)
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    shared = Flight(config, config.train, world, world_spec(world), tmp_path / "run", work)
    checks = dict(verify_preflight.CHECKS)
    for needed in before:
        assert run_check(needed, lambda needed=needed: checks[needed](shared)).status != "failed"
    return run_check(name, lambda: checks[name](shared))


def test_no_audit(arena: Arena, tmp_path: Path) -> None:
    line = run_line("audit", flight(arena, tmp_path, audit=None), tmp_path)
    assert line.status == "failed"
    assert "sprl audit-ckpt" in line.todo


def test_without_conditions_what_needs_them_is_skipped(arena: Arena, tmp_path: Path) -> None:
    file = config_file(tmp_path, arena)
    result = sprl("verify", "preflight", file, "--out", tmp_path / "record")
    assert result.code == 4
    lines = {line["name"]: line for line in json.loads((tmp_path / "record" / layout.VERIFY).read_text())["lines"]}
    assert failed_names(lines) == {"conditions"}
    assert lines["audit"]["status"] == "passed"
    assert "--conditions" in lines["frames and actions"]["todo"]


def failed_names(lines: dict[str, Any]) -> set[str]:
    return {name for name, line in lines.items() if line["status"] == "failed"}


def test_a_clip_that_was_replaced(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stateplay_rl.checks import preflight_data

    real = preflight_data.decode_mp4
    monkeypatch.setattr(preflight_data, "decode_mp4", lambda path: 255 - real(path))
    line = run_line("frames and actions", flight(arena, tmp_path), tmp_path, "conditions")
    assert "another picture" in line.detail


def test_a_clip_that_is_too_short(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stateplay_rl.checks import preflight_data

    real = preflight_data.decode_mp4
    monkeypatch.setattr(preflight_data, "decode_mp4", lambda path: real(path)[:3])
    assert "has 3 frames" in run_line("frames and actions", flight(arena, tmp_path), tmp_path, "conditions").detail


def test_a_changed_first_frame(arena: Arena, tmp_path: Path) -> None:
    folder = tmp_path / "conditions"
    shutil.copytree(arena.conditions, folder)
    for frame in (folder / "frames").iterdir():
        frame.write_bytes(frame.read_bytes()[:-1] + b"\0")
    config = flight(arena, tmp_path).model_copy(update={"conditions": folder})
    assert run_line("frames and actions", config, tmp_path, "conditions").status == "failed"


def test_more_conditions_than_there_are(arena: Arena, tmp_path: Path) -> None:
    line = run_line("plan", flight(arena, tmp_path, stage_conditions=99), tmp_path, "conditions")
    assert (line.status, "stage_conditions" in line.todo) == ("failed", True)


def test_closed_gates_are_found(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With closed gates module B gets no gradient: days of training would move nothing."""
    real = NativeWorld.set_mode

    def close(world: NativeWorld, mode: Any) -> Any:
        groups = real(world, mode)
        with torch.no_grad():
            for name, parameter in world.transformer.named_parameters():
                if name.endswith(".gate"):
                    parameter.zero_()
        return groups

    monkeypatch.setattr(NativeWorld, "set_mode", close)
    line = run_line("gradient map", flight(arena, tmp_path), tmp_path, "conditions")
    assert line.status == "failed"
    assert "no gradient reaches transition" in line.detail


def test_frozen_videos_are_found(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = NativeWorld.decode
    monkeypatch.setattr(
        NativeWorld, "decode", lambda world, x: np.repeat(real(world, x)[:, :1], real(world, x).shape[1], 1)
    )
    line = run_line("baseline rollouts", flight(arena, tmp_path), tmp_path, "conditions")
    assert (line.status, "motion" in line.detail, "sprl rollout" in line.todo) == ("failed", True, True)


def test_over_exposed_videos_are_found(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = NativeWorld.decode
    monkeypatch.setattr(NativeWorld, "decode", lambda world, x: np.maximum(real(world, x), 215).astype(np.uint8))
    line = run_line("baseline rollouts", flight(arena, tmp_path), tmp_path, "conditions")
    assert (line.status, "luma" in line.detail) == ("failed", True)


def test_a_judge_that_gives_no_scores(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stateplay_rl.arena.judge import RefereeJudge

    monkeypatch.setattr(RefereeJudge, "score_group", lambda judge, group: failed_verdict(2, "no connection"))
    line = run_line("judge", flight(arena, tmp_path), tmp_path, "conditions", "baseline rollouts")
    assert (line.status, "no connection" in line.detail, "--probe" in line.todo) == ("failed", True, True)


def test_a_full_disk_is_known_before(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    line = run_line("disk", flight(arena, tmp_path), tmp_path, "conditions")
    assert (line.status, "bytes needed, 1 free" in line.detail) == ("failed", True)


def test_too_little_memory_names_the_settings() -> None:
    with pytest.raises(CheckError, match="more than 95%") as caught:
        preflight_world.Memory("cuda:0", 47 * 2**30, 48 * 2**30).line()
    assert "samples_per_call" in caught.value.hint
    assert "of 48.0 GiB" in preflight_world.Memory("cuda:0", 40 * 2**30, 48 * 2**30).line()


def test_production_without_a_drill_fails(arena: Arena, tmp_path: Path) -> None:
    line = run_line("kill and resume", flight(arena, tmp_path, run_mode="production"), tmp_path)
    assert (line.status, "verify resume" in line.todo) == ("failed", True)


def test_settings_are_those_of_the_drill(arena: Arena) -> None:
    assert TrainNftConfig.model_validate(settings(arena)).judge.name == "referee"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("base") / "model")


def stage_c(arena: Arena, tmp_path: Path, reward_model: Path) -> PreflightConfig:
    config = flight(arena, tmp_path, stage="c", judge={"name": "student", "reward_model": str(reward_model)})
    return config.model_copy(update={"sample": 1})


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that has learnt nothing answers with little probability; its scores are taken all the same."""
    monkeypatch.setattr(reading, "LEAST_LEGAL_MASS", 0.0)


GATE = ("gate and student", "conditions", "baseline rollouts")


def gate_line(config: PreflightConfig, tmp_path: Path) -> Any:
    return run_line(GATE[0], config, tmp_path, *GATE[1:])


@pytest.mark.usefixtures("answers")
def test_a_student_is_saved_and_read_back(arena: Arena, tmp_path: Path, model: Path) -> None:
    config = stage_c(arena, tmp_path, seal(tmp_path / "rm", model, passed=True, reading="expected", candidates=(2,)))
    line = gate_line(config, tmp_path)
    assert (line.status, "saved, read back" in line.detail) == ("passed", True), line


@pytest.mark.usefixtures("answers")
def test_a_student_that_is_not_what_was_saved(
    arena: Arena, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = student_judge.save_adapter

    def save_other(wrapped: Any, folder: Path, base: str) -> None:
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                torch.nn.init.constant_(parameter, 0.5)
        real(wrapped, folder, base)

    monkeypatch.setattr(student_judge, "save_adapter", save_other)
    config = stage_c(arena, tmp_path, seal(tmp_path / "rm", model, passed=True, reading="expected", candidates=(2,)))
    line = gate_line(config, tmp_path)
    assert (line.status, "saved and read back" in line.detail, "train-rm" in line.todo) == ("failed", True, True)


def test_a_student_without_scores(arena: Arena, tmp_path: Path, model: Path) -> None:
    config = stage_c(arena, tmp_path, seal(tmp_path / "rm", model, passed=True, max_length=100, candidates=(2,)))
    line = gate_line(config, tmp_path)
    assert (line.status, "too_long" in line.detail, "train-rm" in line.todo) == ("failed", True, True)


@pytest.fixture(scope="module")
def stage_a(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished stage A of two conditions."""
    folder = tmp_path_factory.mktemp("stage_a")
    file = config_file(folder, arena, stage_conditions=2)
    succeed("train-nft", arena.conditions, "--config", file, "--out", folder / "run", "-q")
    return folder / "run"


@pytest.mark.slow
@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("passed", [True, False])
def test_a_gate_that_was_missed_fails_its_line_alone(
    arena: Arena, tmp_path: Path, model: Path, stage_a: Path, passed: bool
) -> None:
    """The whole checklist of stage C: going on in stage A's ledger, with the student as the judge."""
    config = stage_c(arena, tmp_path, seal(tmp_path / "rm", model, passed=passed, reading="expected", candidates=(2,)))
    lines = lines_of(config.model_copy(update={"run": stage_a}), tmp_path)
    assert failed(lines) == (set() if passed else {"gate and student"}), lines
    assert passed or "--extend" in lines["gate and student"].todo


def test_memory_that_is_too_full(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_world, "FULLEST", 0.0)
    line = run_line("memory", flight(arena, tmp_path), tmp_path, "conditions", "gradient map", "baseline rollouts")
    assert (line.status, "samples_per_call" in line.todo) == ("failed", True)


PLANTED = {
    "audit": test_no_audit,
    "conditions": test_without_conditions_what_needs_them_is_skipped,
    "frames and actions": test_a_clip_that_was_replaced,
    "plan": test_more_conditions_than_there_are,
    "gradient map": test_closed_gates_are_found,
    "baseline rollouts": test_frozen_videos_are_found,
    "judge": test_a_judge_that_gives_no_scores,
    "gate and student": test_a_gate_that_was_missed_fails_its_line_alone,
    "disk": test_a_full_disk_is_known_before,
    "memory": test_memory_that_is_too_full,
    "kill and resume": test_production_without_a_drill_fails,
}


def test_every_line_has_a_planted_fault() -> None:
    assert list(PLANTED) == [name for name, _ in verify_preflight.CHECKS]
