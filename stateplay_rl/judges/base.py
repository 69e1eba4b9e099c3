"""What a judge is: a group in, one verdict out; all judges return the same record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal, Protocol

from stateplay_rl.stores.groups import StoredGroup

VerdictStatus = Literal["scored", "failed", "in_doubt"]

LOWEST_SCORE = 0.0
HIGHEST_SCORE = 100.0


@dataclass(frozen=True)
class GroupVerdict:
    """A judge's answer for one group.

    Args:
        scores: points 0..100, one per candidate in stored order; None for each where there is no score.
        status: `scored` only when every candidate has its score; a partial judgement is `failed`.
        reason: why there is no score; None when scored.
        request_id: the paid request behind the scores, if there was one.
        details: components by name, plain JSON values; kept beside the scores, never trained on.
    """

    scores: tuple[float | None, ...]
    status: VerdictStatus
    reason: str | None = None
    request_id: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)


class Judge(Protocol):
    """Scores whole groups. The same group always gets the same verdict from an in-process judge."""

    judge_id: str
    """Name that stands in every record."""
    protocol_sha256: str
    """Hash of everything that decides the scores: rubric, settings, code version of the measure."""

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        """Judge all candidates of one group together."""


def scored(
    scores: Sequence[float], *, request_id: str | None = None, details: Mapping[str, object] | None = None
) -> GroupVerdict:
    """A full verdict."""
    return GroupVerdict(tuple(scores), "scored", None, request_id, details or {})


def failed(
    candidates: int,
    reason: str,
    *,
    request_id: str | None = None,
    details: Mapping[str, object] | None = None,
) -> GroupVerdict:
    """A verdict without scores: every candidate None, with the reason."""
    return GroupVerdict((None,) * candidates, "failed", reason, request_id, details or {})


def checked(verdict: GroupVerdict, candidates: int) -> GroupVerdict:
    """The verdict itself when it keeps the rules, else a failed one that says which rule it broke.

    A scored verdict needs one finite number in 0..100 per candidate; a failure is never a score, so any other
    status loses its scores. Nothing is clipped.

    Args:
        verdict: as a judge returned it.
        candidates: number of candidates of the group.
    """
    if verdict.status != "scored":
        reason = verdict.reason or f"{verdict.status} without a reason"
        return GroupVerdict((None,) * candidates, verdict.status, reason, verdict.request_id, verdict.details)
    problem = _problem(verdict.scores, candidates)
    if problem:
        return failed(candidates, problem, request_id=verdict.request_id, details=verdict.details)
    scores = tuple(float(score) for score in verdict.scores if score is not None)
    return GroupVerdict(scores, "scored", None, verdict.request_id, verdict.details)


def _problem(scores: Sequence[object], candidates: int) -> str:
    """Which rule the scores of a `scored` verdict break; empty when none. Plug-ins may return anything."""
    if len(scores) != candidates:
        return f"invalid_scores: {len(scores)} scores for {candidates} candidates"
    for index, score in enumerate(scores):
        if score is None:
            return f"partial: candidate {index} has no score"
        if isinstance(score, bool) or not isinstance(score, Real) or not math.isfinite(score):
            return f"invalid_scores: candidate {index} got {score!r}"
        if not LOWEST_SCORE <= float(score) <= HIGHEST_SCORE:
            return f"invalid_scores: candidate {index} got {float(score):g}, outside 0..100"
    return ""
