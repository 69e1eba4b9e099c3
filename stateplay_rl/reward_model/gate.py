"""The gate: whether the student is good enough for stage C. That the software ran is another field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stateplay_rl.config.train_rm import GateConfig

GATE_VERSION = 1
UNMEASURED = "measured with ablations=true, and above"
GROW = "grow stage A by 280 conditions and train again (sprl train-nft ... --extend 280), or stop"


@dataclass(frozen=True)
class Check:
    """One condition of the gate; `value` is None when it could not be measured, which is a failure."""

    name: str
    value: float | None
    rule: str
    threshold: float
    passed: bool


def gate_checks(evaluation: Mapping[str, Any], config: GateConfig) -> list[Check]:
    """Every condition of the gate, measured on the test split.

    * three-class pairwise agreement, at least the threshold;
    * parse failures, at most the threshold;
    * the agreement's lower bound, above the agreement of every baseline in `must_beat`; a baseline that these groups
      cannot be put to (no reference to hide) is left out, and the gate names it; one that was switched off
      (`ablations: false`) has not been beaten.
    """
    student = evaluation["student"]
    agreement = student["pairwise_agreement"]
    failures = student["parse_failures"] / student["groups"] if student["groups"] else None
    checks = [
        Check(
            "pairwise_agreement",
            agreement,
            "at least",
            config.pairwise_agreement,
            agreement is not None and agreement >= config.pairwise_agreement,
        ),
        Check(
            "parse_failures",
            failures,
            "at most",
            config.parse_failures,
            failures is not None and failures <= config.parse_failures,
        ),
    ]
    interval = student["pairwise_agreement_interval"]
    low = None if interval is None else float(interval[0])
    for name in config.must_beat:
        if name not in evaluation["baselines"]:
            checks.append(Check(f"lower_bound_above_{name}", None, UNMEASURED, 1.0, False))
            continue
        other = evaluation["baselines"][name]["pairwise_agreement"]
        if other is not None:
            checks.append(Check(f"lower_bound_above_{name}", low, "above", other, low is not None and low > other))
    return checks


def gate_record(
    evaluation: Mapping[str, Any],
    config: GateConfig,
    *,
    adapter_sha256: str,
    judge_protocol_sha256: str,
    data: Mapping[str, Any],
) -> dict[str, Any]:
    """``gate.json``: what was judged, every number, pass or fail, and what to do.

    Args:
        evaluation: as in ``evaluation.json``.
        adapter_sha256: identity of the adapter.
        judge_protocol_sha256: protocol hash of the judge `student` that this adapter makes.
        data: hash and counts of what was learned from.
    """
    checks = gate_checks(evaluation, config)
    measured = [name for name in config.must_beat if f"lower_bound_above_{name}" in {c.name for c in checks}]
    return {
        "version": GATE_VERSION,
        "ran": True,
        "passed": all(check.passed for check in checks),
        "adapter_sha256": adapter_sha256,
        "judge_protocol_sha256": judge_protocol_sha256,
        "data": dict(data),
        "split": evaluation["split"],
        "reading": evaluation["reading"],
        "thresholds": {
            "pairwise_agreement": config.pairwise_agreement,
            "parse_failures": config.parse_failures,
            "must_beat": list(config.must_beat),
            "tie_points": config.tie_points,
            "confidence": config.confidence,
        },
        "checks": [vars(check) for check in checks],
        "not_measurable": [name for name in config.must_beat if name not in measured],
        "advice": _advice(checks),
    }


def _advice(checks: list[Check]) -> str:
    failed = [check for check in checks if not check.passed]
    if not failed:
        return "stage C may start: sprl train-nft --stage c"
    if all(check.rule == UNMEASURED for check in failed):
        return "train again with ablations=true: only what was not measured has failed"
    return GROW
