"""Audits of stage C: the API judges some batches too; when the student no longer agrees with it, the run pauses.

Audited conditions are ordinary ones: drawn once, booked once, trained on the student's scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.train_nft import AuditsConfig
from stateplay_rl.nft.agreement import pairwise_agreement
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import LineLog

DEFAULT_MIN_AGREEMENT = 0.60
"""Within-group agreement that a gate asks for by default; used when a smoke run has no gate."""


@dataclass(frozen=True)
class AuditWindow:
    """Conditions of one batch that are audited, and where their window began.

    Args:
        members: audited conditions.
        first_batch: first batch of the window.
        ends: this batch is the window's last: agreement is judged now.
    """

    members: frozenset[str]
    first_batch: int
    ends: bool


NO_AUDIT = AuditWindow(frozenset(), 0, ends=False)


def audit_window(plan: SegmentPlan, settings: AuditsConfig, batch: int, members: Sequence[str]) -> AuditWindow:
    """Which conditions of a batch are audited.

    The first `first_conditions` of the stage, then whole batches from every n-th on, until `groups` are reached.
    """
    if plan.kind != "c" or settings.judge is None:
        return NO_AUDIT
    number = batch - plan.first_batch
    before = number * plan.per_batch
    last = batch + 1 == plan.end_batch
    if before < settings.first_conditions:
        chosen = members[: settings.first_conditions - before]
        reached = before + len(chosen) >= settings.first_conditions
        return AuditWindow(frozenset(chosen), plan.first_batch, ends=reached or last)
    since = number % settings.every_batches
    begins = number - since
    if begins * plan.per_batch < settings.first_conditions or since * plan.per_batch >= settings.groups:
        return NO_AUDIT
    reached = (since + 1) * plan.per_batch >= settings.groups
    return AuditWindow(frozenset(members), plan.first_batch + begins, ends=reached or last)


@dataclass(frozen=True)
class Agreement:
    """What an audit found.

    Args:
        groups: groups that the auditing judge scored, and that were compared.
        unscored: groups that it could not score.
        student_failed: share of the audited groups that the student could not score.
        pairwise: within-group three-class agreement, 0..1, a failed answer of the student agreeing on nothing; None
            without a group to compare.
    """

    groups: int
    unscored: int
    student_failed: float
    pairwise: float | None

    def line(self) -> dict[str, Any]:
        """Plain values for the metrics."""
        return vars(self).copy()


def measure_agreement(segment: Path, group_ids: Sequence[str], tie_points: int = 0) -> Agreement:
    """Agreement of the two judges on the groups of a window, from the segment's logs."""
    student = _lines(segment / layout.VERDICTS)
    audit = _lines(segment / layout.AUDITS)
    both: list[tuple[list[float], list[float] | None]] = []
    student_failed = 0
    for group_id in group_ids:
        ours, theirs = student[group_id], audit[group_id]
        student_failed += ours["status"] != "scored"
        if theirs["status"] == "scored":
            both.append((theirs["scores"], ours["scores"] if ours["status"] == "scored" else None))
    return Agreement(
        groups=len(both),
        unscored=len(group_ids) - len(both),
        student_failed=student_failed / max(len(group_ids), 1),
        pairwise=pairwise_agreement([pair[0] for pair in both], [pair[1] for pair in both], tie_points),
    )


def agreement_alarm(agreement: Agreement, threshold: float, batch: int) -> dict[str, Any] | None:
    """An alarm when the student falls below its gate's own threshold, or nothing could be compared."""
    if agreement.pairwise is not None and agreement.pairwise >= threshold:
        return None
    value = "nothing to compare" if agreement.pairwise is None else f"{agreement.pairwise:.2f}"
    return {
        "batch": batch,
        "name": "audit_agreement",
        "value": agreement.pairwise,
        "threshold": threshold,
        "severity": "alarm",
        "message": f"student and API agree on too few pairs ({value}; the gate asked for {threshold:.2f})",
    }


def _lines(path: Path) -> Mapping[str, Mapping[str, Any]]:
    return {line["group_id"]: line for line in LineLog(path).read()}
