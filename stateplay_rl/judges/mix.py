"""Several judges with named weights; the total is computed here, never by a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stateplay_rl.errors import UsageError
from stateplay_rl.judges.base import GroupVerdict, Judge, VerdictStatus, checked
from stateplay_rl.stores.atomic import sha256_json
from stateplay_rl.stores.groups import StoredGroup


@dataclass(frozen=True)
class MixPart:
    """A judge and its relative weight."""

    judge: Judge
    weight: float


class MixJudge:
    """Weighted mean of its parts' scores; a group that any part cannot judge is not judged.

    Args:
        parts: judges by name; weights are relative, their sum is divided out.

    Raises:
        UsageError: no part, or a weight that is not positive.
    """

    def __init__(self, parts: Mapping[str, MixPart]) -> None:
        if not parts or any(not part.weight > 0 for part in parts.values()):
            raise UsageError("a mix of judges needs parts with positive weights", "set judge.parts.NAME.weight")
        self.parts = dict(sorted(parts.items()))
        """The parts by name, in a fixed order."""
        total = sum(part.weight for part in self.parts.values())
        self.shares = {name: part.weight / total for name, part in self.parts.items()}
        self.judge_id = "mix(" + ",".join(f"{n}={p.judge.judge_id}" for n, p in self.parts.items()) + ")"
        self.protocol_sha256 = sha256_json(
            {name: [part.judge.protocol_sha256, self.shares[name]] for name, part in self.parts.items()}
        )

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        """Every part's verdict, then the total; the parts' scores stay in the details."""
        count = group.record.candidates
        verdicts = {name: checked(part.judge.score_group(group), count) for name, part in self.parts.items()}
        details = {
            name: {
                "scores": list(v.scores),
                "status": v.status,
                "reason": v.reason,
                "details": dict(v.details),
            }
            for name, v in verdicts.items()
        }
        requests = [v.request_id for v in verdicts.values() if v.request_id]
        request_id = "+".join(requests) or None
        unjudged = {name: v for name, v in verdicts.items() if v.status != "scored"}
        if unjudged:
            # A part in doubt may be completed later; only when none has failed is the whole still in doubt.
            any_failed = any(v.status == "failed" for v in unjudged.values())
            status: VerdictStatus = "failed" if any_failed else "in_doubt"
            reason = "; ".join(f"{name}: {v.reason}" for name, v in unjudged.items())
            return GroupVerdict((None,) * count, status, reason, request_id, details)
        totals = tuple(self._total(verdicts, candidate) for candidate in range(count))
        return GroupVerdict(totals, "scored", None, request_id, details)

    def _total(self, verdicts: Mapping[str, GroupVerdict], candidate: int) -> float:
        parts = ((self.shares[name], verdict.scores[candidate]) for name, verdict in verdicts.items())
        total = sum(share * score for share, score in parts if score is not None)
        # Shares may add up to 1 + 1e-16: equal scores of 100 must not become 100.00000000000001.
        return min(max(total, 0.0), 100.0)
