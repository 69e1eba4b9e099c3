"""Every attempt counted and priced."""

from __future__ import annotations

import pytest

from stateplay_rl.judges.costs import cost_table
from stateplay_rl.stores.attempts import Attempt


def attempt(number: int, state: str, reason: str | None, cost: float | None, group: str = "g0") -> Attempt:
    return Attempt(
        request_id=f"r-{number}",
        key="k",
        attempt=number,
        group_id=group,
        judge_id="j",
        protocol_sha256="p",
        model="m",
        base_url="u",
        images=(),
        purpose="score",
        estimated_input_tokens=100,
        session="s",
        state=state,  # type: ignore[arg-type]
        reason=reason,
        http_status=None,
        sent_utc="",
        ended_utc=None,
        latency_seconds=float(number),
        input_tokens=100 if state == "answered" else None,
        output_tokens=10 if state == "answered" else None,
        cost=cost,
        answered_model=None,
    )


def test_rows_by_outcome() -> None:
    table = cost_table(
        [
            attempt(1, "rejected", "http_429: slow down", 0.0),
            attempt(2, "rejected", "http_429: really", 0.0),
            attempt(3, "answered", "labels: missing D", 0.2),
            attempt(4, "answered", None, 0.3),
            attempt(5, "in_doubt", "no_complete_answer: ReadTimeout", 0.4, "g1"),
        ]
    )
    assert [(row.outcome, row.attempts, row.groups, row.cost) for row in table.rows] == [
        ("in doubt", 1, 1, 0.4),
        ("refused: http_429", 2, 1, 0.0),
        ("scored", 1, 1, 0.3),
        ("unparsed: labels", 1, 1, 0.2),
    ]
    assert (table.attempts, table.billed) == (5, 3)
    assert table.cost == pytest.approx(0.9)
    assert table.rows[1].seconds == 1.5


def test_no_price_is_no_zero() -> None:
    table = cost_table([attempt(1, "answered", None, None), attempt(2, "rejected", "http_500", None)])
    assert table.cost is None
    assert {row.outcome: row.cost for row in table.rows} == {"scored": None, "refused: http_500": 0.0}
