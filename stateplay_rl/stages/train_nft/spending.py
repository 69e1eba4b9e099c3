"""What the paid judges of a run were asked and what it cost: read from the request store after every batch.

A batch's numbers cover its own groups and the held-out ones that were judged with it, over all attempts, also those of
a killed process. They stand in `timings.jsonl`: prices and refusals are no part of what a run must reproduce.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from stateplay_rl.judges.base import Judge
from stateplay_rl.stages.remote_judging import costs_of
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.jsonl import LineLog


class Spending:
    """Adds up a run's requests.

    Args:
        run: the run's folder; what its `timings.jsonl` holds already is counted.
        judges: everybody who judges here.
    """

    def __init__(self, run: Path, judges: Sequence[Judge]) -> None:
        self._run, self._judges = run, judges
        self.attempts = 0
        self.cost: float | None = 0.0
        for line in LineLog(run / layout.TIMINGS).read():
            self._add(line.get("requests"))

    def of_batch(self, batch: int, group_ids: Collection[str], *, opens_segment: bool) -> dict[str, Any] | None:
        """The batch's requests: `attempts`, `billed`, `cost`; None where no judge is paid.

        Args:
            batch: its number.
            group_ids: its groups.
            opens_segment: whether the evaluation before this batch belongs to it, too.
        """
        evaluated = {batch, batch + 1} if opens_segment else {batch + 1}
        heldout = [
            group_id
            for line in LineLog(self._run / layout.HELDOUT).read()
            if line["batch"] in evaluated
            for group_id in GroupStore(self._run / line["groups"]).finished()
        ]
        table = costs_of(self._judges, {*group_ids, *heldout})
        if table is None:
            return None
        found = {"attempts": table.attempts, "billed": table.billed, "cost": table.cost}
        self._add(found)
        return found

    def words(self) -> str:
        """For people: `57 requests, 1.92`; without a price the number of requests alone; empty when none was sent."""
        if not self.attempts:
            return ""
        cost = "" if self.cost is None else f", cost {self.cost:.2f}"
        return f"{self.attempts} requests{cost}"

    def _add(self, requests: dict[str, Any] | None) -> None:
        if requests is None:
            return
        self.attempts += requests["attempts"]
        known = self.cost is not None and requests["cost"] is not None
        self.cost = self.cost + requests["cost"] if known else None
