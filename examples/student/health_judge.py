"""A judge with a taste of its own, for arena: it looks at the health bars only.

    PYTHONPATH=examples/student sprl score GROUPS --judge health_judge:HealthJudge --out scores

Arena's student was trained on the referee's totals (health, meter, bodies). This judge orders candidates otherwise, so
what the LoRA adds to the base can be seen; with the referee as the judge the base knows it all.
"""

from __future__ import annotations

from stateplay_rl.arena.judge import RefereeJudge
from stateplay_rl.judges.base import GroupVerdict, scored
from stateplay_rl.stores.atomic import sha256_json
from stateplay_rl.stores.groups import StoredGroup


class HealthJudge:
    """The referee's health part, 0..100; its total where health truly never changes."""

    judge_id = "arena-health"

    def __init__(self) -> None:
        self._referee = RefereeJudge()
        self.protocol_sha256 = sha256_json({"judge": self.judge_id, "referee": self._referee.protocol_sha256})

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        """Scores of every candidate; an unreadable one has 0.

        Raises:
            CorruptionError, InputError: as the referee.
        """
        details = self._referee.score_group(group).details
        parts = [c["score"] if c["hp"] is None or not c["readable"] else c["hp"] for c in details["candidates"]]
        return scored([min(100.0, max(0.0, part)) for part in parts], details=details)
