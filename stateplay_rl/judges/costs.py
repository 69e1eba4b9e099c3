"""What the attempts of a judge came to: one row per outcome, every attempt counted and priced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from stateplay_rl.stores.attempts import Attempt


@dataclass(frozen=True)
class CostRow:
    """Attempts with one outcome.

    Args:
        outcome: `scored`, `unparsed: <code>`, `in doubt`, `refused: http_429`, ...
        cost: sum in the price table's currency; None when any of them has no price.
        seconds: median latency, None without any.
    """

    outcome: str
    attempts: int
    groups: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    seconds: float | None


@dataclass(frozen=True)
class CostTable:
    """All attempts on some groups. `billed`: attempts that were or may have been billed."""

    rows: tuple[CostRow, ...]
    attempts: int
    billed: int
    cost: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain values, as in ``summary.json``."""
        return asdict(self)


def cost_table(attempts: Iterable[Attempt]) -> CostTable:
    """Sum attempts up by outcome, the outcomes in alphabetical order."""
    by_outcome: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_outcome.setdefault(outcome_of(attempt), []).append(attempt)
    rows = tuple(_row(name, found) for name, found in sorted(by_outcome.items()))
    everything = [attempt for found in by_outcome.values() for attempt in found]
    billed = sum(attempt.state != "rejected" for attempt in everything)
    return CostTable(rows, len(everything), billed, _cost(everything))


def outcome_of(attempt: Attempt) -> str:
    """Name of an attempt's outcome; details of the single attempt are left out."""
    code = (attempt.reason or "").partition(":")[0]
    if attempt.state == "answered":
        return f"unparsed: {code}" if code else "scored"
    if attempt.state == "rejected":
        return f"refused: {code}"
    return "in doubt" if attempt.state == "in_doubt" else "being sent"


def _row(outcome: str, attempts: Sequence[Attempt]) -> CostRow:
    latencies = [a.latency_seconds for a in attempts if a.latency_seconds is not None]
    return CostRow(
        outcome=outcome,
        attempts=len(attempts),
        groups=len({a.group_id for a in attempts}),
        input_tokens=sum(a.input_tokens or 0 for a in attempts),
        output_tokens=sum(a.output_tokens or 0 for a in attempts),
        cost=_cost(attempts),
        seconds=median(latencies) if latencies else None,
    )


def _cost(attempts: Sequence[Attempt]) -> float | None:
    costs = [a.cost if a.state != "rejected" else 0.0 for a in attempts]
    return None if any(cost is None for cost in costs) else float(sum(cost for cost in costs if cost is not None))
