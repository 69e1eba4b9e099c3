"""`sprl train-rm` and the judge `student` through the command line: one process, two, sharded, killed, reloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.errors import EXIT_CHECK, EXIT_INPUT, EXIT_USAGE
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.stores.scores import ScoreTable
from tests.e2e.command_line import KillPoint, run_elsewhere, run_with_kills, sprl, succeed, with_set
from tests.reward_model.arena_groups import SHOWN, Inputs, write_inputs, write_tiny_model

SPLITS = ("train", "train", "train", "validation", "test", "heldout")


class Student:
    """Inputs and a base, and the command line that trains on them."""

    def __init__(self, root: Path) -> None:
        self.inputs: Inputs = write_inputs(root, SPLITS)
        self.model = write_tiny_model(root / "model")

    def train(self, out: Path, *more: object, **settings: Any) -> list[str]:
        values = {
            "protocol.frames": SHOWN,
            "optimizer.groups_per_step": 2,
            "optimizer.epochs": 1,
            "optimizer.learning_rate": 1e-2,
            "reading": "greedy",
            "ablations": False,
            "compute.gradient_checkpointing": False,
            "compute.threads": 1,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        command = ["train-rm", self.inputs.groups, "--scores", self.inputs.scores, "--model", self.model, "--out", out]
        return [*map(str, command), "-q", *with_set(f"{k}={v}" for k, v in values.items()), *map(str, more)]


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Student:
    return Student(tmp_path_factory.mktemp("student"))


@pytest.fixture(scope="module")
def trained(student: Student, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "reward_model"
    succeed(*student.train(out))
    return out


def results(out: Path) -> dict[str, bytes]:
    """Everything of a training that must not depend on what happened on the way."""
    read_manifest(out, schema="reward_model", verify_files=True)
    names = [layout.DATASET, layout.TRAINING_LOG, layout.PREDICTIONS, layout.EVALUATION, layout.GATE]
    names += [f"{layout.ADAPTER_FOLDER}/{file.name}" for file in (out / layout.ADAPTER_FOLDER).iterdir()]
    return {name: (out / name).read_bytes() for name in names}


def test_the_directory_says_what_was_learnt_and_whether_it_is_good_enough(trained: Path) -> None:
    gate = json.loads((trained / layout.GATE).read_text())
    assert gate["ran"] is True
    assert gate["passed"] is False
    assert gate["data"]["groups"] == {"train": 3, "validation": 1, "test": 2}
    manifest = read_manifest(trained, schema="reward_model", verify_files=True)
    assert manifest.extra["lora_targets"]["linear_attention.in_proj_qkv"] == 3
    assert manifest.extra["lora_targets"]["full_attention.q_proj"] == 1
    assert set(manifest.inputs) == {"groups", "scores", "conditions"}
    assert (trained / layout.CALIBRATION).read_bytes().startswith(b"\x89PNG")
    assert not (trained / layout.CHECKPOINTS_FOLDER).exists()
    evaluation = json.loads((trained / layout.EVALUATION).read_text())
    assert set(evaluation["baselines"]) == {"constant", "position_only", "class_only"}


def test_a_finished_training_is_not_done_again_and_strict_asks_the_gate(student: Student, trained: Path) -> None:
    before = results(trained)
    assert sprl(*student.train(trained)).code == EXIT_USAGE
    assert sprl(*student.train(trained, "--resume", "--strict")).code == EXIT_CHECK
    assert results(trained) == before


def test_a_saved_student_gives_the_same_scores_bit_for_bit(student: Student, trained: Path, tmp_path: Path) -> None:
    """What the process that trained it answered on the test split, and what the judge reads back from disk."""
    for name in ("one", "two"):
        command = ["score", student.inputs.groups, "--judge", "student", "--reward-model", trained]
        succeed(*command, "--out", tmp_path / name, "-q")
    assert (tmp_path / "one" / layout.SCORES).read_bytes() == (tmp_path / "two" / layout.SCORES).read_bytes()
    verdicts = {line["group_id"]: line for line in LineLog(tmp_path / "one" / layout.VERDICTS).read()}
    lines = [line for line in LineLog(trained / layout.PREDICTIONS).read() if line["split"] == "test"]
    assert len(lines) == 2
    for line in lines:
        verdict = verdicts[line["group_id"]]
        assert verdict["details"]["answer"] == line["answer"]
        assert (verdict["scores"] if line["scores"] else None) == line["scores"]
    gate = json.loads((trained / layout.GATE).read_text())
    rows = ScoreTable.read(tmp_path / "one" / layout.SCORES).rows
    assert {row.protocol_sha256 for row in rows} == {gate["judge_protocol_sha256"]}


def test_a_group_one_token_too_long_is_refused(student: Student, trained: Path, tmp_path: Path) -> None:
    longest = json.loads((trained / layout.GATE).read_text())["data"]["longest_tokens"]
    result = sprl(*student.train(tmp_path / "out", max_length=longest - 1))
    assert result.code == EXIT_INPUT
    assert f"has {longest} tokens" in result.text
    assert "max_length" in result.text
    assert not (tmp_path / "out" / layout.MANIFEST).exists()


def test_a_cluster_in_two_splits_is_refused(tmp_path: Path, student: Student) -> None:
    leaking = write_inputs(tmp_path, ["train", "validation", "test"], clusters=[1, 2, 1])
    command = ["train-rm", leaking.groups, "--scores", leaking.scores, "--model", student.model]
    result = sprl(*command, "--out", tmp_path / "out")
    assert result.code == EXIT_INPUT
    assert "cluster 1 in test, train" in result.text


def test_an_empty_split_is_refused(tmp_path: Path, student: Student) -> None:
    few = write_inputs(tmp_path, ["train", "validation"])
    command = ["train-rm", few.groups, "--scores", few.scores, "--model", student.model, "--out", tmp_path / "out"]
    result = sprl(*command)
    assert result.code == EXIT_INPUT
    assert "split test" in result.text


def test_wrong_usage_is_refused_before_anything_is_written(student: Student, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for more, code in (
        (["--set", "optimizer.epochs=4"], EXIT_USAGE),
        (["--set", "lora.target=all"], EXIT_USAGE),
        (["--scores", student.inputs.groups], EXIT_INPUT),
        (["--model", tmp_path / "nothing"], EXIT_INPUT),
    ):
        result = sprl(*student.train(out, *more))
        assert result.code == code, result.text
        assert "Traceback" not in result.text
        assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_two_processes_train_the_same_student(student: Student, trained: Path, tmp_path: Path, sharding: str) -> None:
    result = run_elsewhere(*student.train(tmp_path / "two", compute__sharding=sharding), processes=2)
    assert result.code == 0, result.text
    one, two = results(trained), results(tmp_path / "two")
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []


@pytest.mark.slow
def test_a_killed_and_resumed_training_equals_an_uninterrupted_one(
    student: Student, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    points = [KillPoint(layout.TRAINING_LOG, 1, lines=True), KillPoint(layout.PREDICTIONS, 1, lines=True)]
    assert run_with_kills(student.train(out), out, points, seed=1) >= 1
    assert results(out) == results(trained)
