"""The judge `student`: what it refuses, and how failures come out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stateplay_rl.config.score import JudgeConfig
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.errors import CheckError, CorruptionError, InputError, UnsealedError
from stateplay_rl.reward_model import lora, reading
from stateplay_rl.reward_model.judge import TOO_LONG, StudentJudge
from stateplay_rl.reward_model.student import StudentFacts
from stateplay_rl.stages.judge_choice import make_judge
from stateplay_rl.stages.train_nft.permissions import require_known_groups
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from tests.reward_model.arena_groups import conditions, write_group, write_tiny_model
from tests.reward_model.sealed_student import seal


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> StoredGroup:
    return write_group(GroupStore(tmp_path_factory.mktemp("groups")), conditions(1, 4)[0])


def test_an_answer_that_does_not_parse_is_a_failure_with_its_reason(
    model: Path, group: StoredGroup, tmp_path: Path
) -> None:
    judge = make_judge(JudgeConfig(name="student", reward_model=seal(tmp_path / "rm", model)), world="arena")
    verdict = judge.score_group(group)
    assert (verdict.status, verdict.scores) == ("failed", (None,) * 4)
    assert verdict.reason in ("truncated", "no_json", "empty")
    assert verdict.details["answer"] is not None
    assert judge.score_group(group) == verdict


def test_a_student_that_waits_on_the_host_scores_the_same(model: Path, group: StoredGroup, tmp_path: Path) -> None:
    folder = seal(tmp_path / "rm", model)
    spec = JudgeConfig(name="student", reward_model=folder, student_waits_on_host=True)
    parked = make_judge(spec, world="arena")
    expected = StudentJudge(folder).score_group(group)
    assert [parked.score_group(group) for _ in range(2)] == [expected, expected]


def test_a_group_that_does_not_fit_is_a_failure_and_never_cut(model: Path, group: StoredGroup, tmp_path: Path) -> None:
    verdict = StudentJudge(seal(tmp_path / "rm", model, max_length=100)).score_group(group)
    assert verdict.status == "failed"
    assert str(verdict.reason).startswith(f"{TOO_LONG}:")


def test_a_group_with_another_number_of_candidates_is_refused(model: Path, group: StoredGroup, tmp_path: Path) -> None:
    """What it would say of them means nothing: it is no failure of the group."""
    with pytest.raises(InputError, match=r"has 4 candidates; .* learned from groups of 2 or 3 only"):
        StudentJudge(seal(tmp_path / "rm", model, candidates=(2, 3))).score_group(group)


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ({"sampling": {"candidates": 4}, "heldout": {"conditions": 0, "samples": 2}}, None),
        ({"sampling": {"candidates": 4}, "heldout": {"conditions": 1, "samples": 4}}, None),
        ({"sampling": {"candidates": 4}, "heldout": {"conditions": 1, "samples": 2}}, "heldout.samples"),
        ({"sampling": {"candidates": 3}}, "sampling.candidates"),
    ],
)
def test_a_run_that_would_ask_of_other_groups_does_not_start(
    model: Path, tmp_path: Path, setting: dict[str, object], refused: str | None
) -> None:
    judge = StudentJudge(seal(tmp_path / "rm", model))
    config = TrainNftConfig.model_validate(setting)
    if refused is None:
        require_known_groups(config, judge)
        return
    with pytest.raises(InputError, match=refused) as caught:
        require_known_groups(config, judge)
    assert f"--set {refused}=4" in str(caught.value.hint)


def test_a_student_that_was_saved_and_read_back_scores_the_same(
    model: Path, group: StoredGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LEAST_LEGAL_MASS", 0.0)  # this model has learnt nothing
    spec = JudgeConfig(name="student", reward_model=seal(tmp_path / "rm", model, reading="expected"))
    judge = make_judge(spec, world="arena")
    expected = judge.score_group(group)
    assert expected.status == "scored"
    judge.save_and_reload(tmp_path / "again")
    assert judge.score_group(group) == expected
    first, second = (
        folder / layout.ADAPTER_FOLDER / lora.ADAPTER_WEIGHTS for folder in (tmp_path / "rm", tmp_path / "again")
    )
    assert first.read_bytes() == second.read_bytes()


def test_everything_that_decides_a_score_decides_the_hash(model: Path, tmp_path: Path) -> None:
    folder = seal(tmp_path / "rm", model)
    judge = StudentJudge(folder)
    moved = tmp_path / "elsewhere" / "rm"
    shutil.copytree(folder, moved)
    assert StudentJudge(moved).protocol_sha256 == judge.protocol_sha256
    for name, change in (("reading", "expected"), ("precision", "bfloat16"), ("max_length", 99)):
        other = StudentJudge(seal(tmp_path / name, model, **{name: change}))
        assert other.protocol_sha256 != judge.protocol_sha256


def test_damage_and_other_bases_are_refused(model: Path, group: StoredGroup, tmp_path: Path) -> None:
    with pytest.raises(UnsealedError):
        StudentJudge(tmp_path)
    folder = seal(tmp_path / "rm", model)
    other = write_tiny_model(tmp_path / "other", seed=9)
    with pytest.raises(CheckError, match="not the one"):
        StudentJudge(folder, base=other).score_group(group)
    with pytest.raises(InputError):
        StudentJudge(folder, base=tmp_path / "nowhere").score_group(group)
    with pytest.raises(CheckError, match="protocol"):
        StudentJudge(seal(tmp_path / "prompt", model, protocol_sha256="0" * 64))
    weights = folder / layout.ADAPTER_FOLDER / lora.ADAPTER_WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptionError):
        StudentJudge(folder)
    facts = json.loads((seal(tmp_path / "facts", model) / layout.STUDENT).read_text())
    facts.pop("reading")
    with pytest.raises(CorruptionError, match="reading"):
        StudentFacts.read(tmp_path, json.dumps(facts).encode())
