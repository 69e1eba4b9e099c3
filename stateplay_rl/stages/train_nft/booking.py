"""What rank 0 writes down of a batch: the ledger's states and the verdict logs of the segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stateplay_rl.stages.train_nft.batches import BatchSource
from stateplay_rl.stages.train_nft.in_flight import LOGS, InFlight, Role
from stateplay_rl.stages.train_nft.samples import BatchSamples, JudgedGroup
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger


class Booking:
    """The ledger and the segment's logs; one writer, rank 0.

    Args:
        ledger: open for writing.
        segment: the open segment's folder.
        in_flight: verdicts that are not in the logs yet.
    """

    def __init__(self, ledger: Ledger, segment: Path, in_flight: InFlight) -> None:
        self.ledger = ledger
        self._segment = segment
        self._in_flight = in_flight

    def reserve(self, source: BatchSource, batch: int) -> tuple[str, ...]:
        """The batch's conditions; they belong to it whatever happens."""
        return source.reserve(self.ledger, batch)

    def follow(self, batch: int, condition_id: str, group_id: str, *, judged: bool) -> None:
        """Bring the ledger up to what lies on disk of a batch in flight."""
        state = self.ledger.entry(condition_id).state
        if state == "reserved":
            self.ledger.mark(batch, condition_id, "rolled", group_id)
            state = "rolled"
        if judged and state == "rolled":
            self.ledger.mark(batch, condition_id, "scored")

    def book_verdicts(self, batch: int, judged: Sequence[JudgedGroup]) -> None:
        """Write the verdicts in the batch's order, then forget the batch in flight."""
        for group in judged:
            self.follow(batch, group.condition_id, group.group_id, judged=True)
        lines: Mapping[Role, list[Mapping[str, Any] | None]] = {
            "training": [group.line for group in judged],
            "audit": [group.audit for group in judged],
            "referee": [group.referee for group in judged],
        }
        for role, own in lines.items():
            log = LineLog(self._segment / LOGS[role])
            known = {line["group_id"] for line in log.read()}
            for line in own:
                if line is not None and line["group_id"] not in known:
                    log.append(dict(line))
        self._in_flight.clear()

    def discard_in_flight(self) -> None:
        """At the end of a segment nothing is in flight: leftovers of a kill are in the logs already."""
        self._in_flight.clear()

    def book_outcome(self, batch: int, judged: Sequence[JudgedGroup], samples: BatchSamples) -> None:
        """What became of every condition of the batch."""
        reasons = samples.optimality.gate.reasons
        for group, reason in zip(judged, reasons, strict=True):
            if group.reason is not None:
                self.ledger.mark(batch, group.condition_id, "failed", reason=group.reason)
            elif reason is not None:
                self.ledger.mark(batch, group.condition_id, "gated", reason=reason)
            else:
                self.ledger.mark(batch, group.condition_id, "trained")

    def audited_groups(self, batches: Sequence[int]) -> list[str]:
        """Groups of these batches that the auditing judge looked at, in the ledger's order."""
        audited = {line["group_id"] for line in LineLog(self._segment / layout.AUDITS).read()}
        members = [entry for batch in batches for entry in self.ledger.members(batch)]
        return [entry.group_id for entry in members if entry.group_id in audited and entry.group_id is not None]
