"""The gate: every rule can fail, and what cannot be measured does not pass."""

from __future__ import annotations

from typing import Any

import pytest

from stateplay_rl.config.train_rm import GateConfig
from stateplay_rl.reward_model.gate import gate_checks, gate_record


def evaluation(**changes: Any) -> dict[str, Any]:
    student = {
        "groups": 100,
        "pairwise_agreement": 0.7,
        "pairwise_agreement_interval": [0.62, 0.78],
        "parse_failures": 1,
        **changes.pop("student", {}),
    }
    names = ("constant", "position_only", "class_only", "reference_hidden", "actions_hidden", "untrained")
    baselines = {name: {"pairwise_agreement": 0.4} for name in names}
    return {"split": "test", "reading": "greedy", "student": student, "baselines": {**baselines, **changes}}


def record(value: dict[str, Any], config: GateConfig | None = None) -> dict[str, Any]:
    facts = {"adapter_sha256": "a" * 64, "judge_protocol_sha256": "b" * 64, "data": {"sha256": "c" * 64}}
    return gate_record(value, config or GateConfig(), **facts)


def test_a_good_student_passes_and_everything_is_named() -> None:
    gate = record(evaluation())
    assert gate["ran"] is True
    assert gate["passed"] is True
    assert gate["thresholds"]["pairwise_agreement"] == 0.60
    assert (gate["adapter_sha256"], gate["data"]["sha256"]) == ("a" * 64, "c" * 64)
    assert {check["name"] for check in gate["checks"]} == {
        "pairwise_agreement",
        "parse_failures",
        *(f"lower_bound_above_{name}" for name in GateConfig().must_beat),
    }


@pytest.mark.parametrize(
    ("value", "failed"),
    [
        (evaluation(student={"pairwise_agreement": 0.599}), "pairwise_agreement"),
        (evaluation(student={"pairwise_agreement": None}), "pairwise_agreement"),
        (evaluation(student={"parse_failures": 2}), "parse_failures"),
        (evaluation(student={"groups": 0, "parse_failures": 0}), "parse_failures"),
        (evaluation(position_only={"pairwise_agreement": 0.62}), "lower_bound_above_position_only"),
        (evaluation(reference_hidden={"pairwise_agreement": 0.65}), "lower_bound_above_reference_hidden"),
        (evaluation(student={"pairwise_agreement_interval": None}), "lower_bound_above_constant"),
    ],
)
def test_every_rule_can_fail(value: dict[str, Any], failed: str) -> None:
    gate = record(value)
    assert gate["ran"] is True
    assert gate["passed"] is False
    assert failed in {check["name"] for check in gate["checks"] if not check["passed"]}
    assert "280" in gate["advice"]


def test_an_ablation_that_cannot_be_made_is_named_and_one_that_is_not_asked_for_is_no_rule() -> None:
    hidden = record(evaluation(reference_hidden={"groups": 0, "pairwise_agreement": None}))
    assert hidden["passed"] is True
    assert hidden["not_measurable"] == ["reference_hidden"]
    better = evaluation(actions_hidden={"pairwise_agreement": 0.7})
    assert record(better)["passed"] is False
    config = GateConfig(must_beat=("constant", "position_only", "class_only", "reference_hidden"))
    assert all(check.passed for check in gate_checks(better, config))


def test_an_ablation_that_was_switched_off_has_not_been_beaten() -> None:
    value = evaluation()
    del value["baselines"]["reference_hidden"]
    gate = record(value)
    assert gate["passed"] is False
    assert [check["name"] for check in gate["checks"] if not check["passed"]] == ["lower_bound_above_reference_hidden"]
    assert "ablations=true" in gate["advice"]
    config = GateConfig(must_beat=("constant", "position_only", "class_only"))
    assert record(value, config)["passed"] is True
