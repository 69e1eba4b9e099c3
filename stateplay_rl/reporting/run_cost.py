"""What a run took: seconds and memory by part, and the requests of paid judges."""

from __future__ import annotations

from collections.abc import Sequence

from stateplay_rl.reporting.blocks import (
    BarChart,
    BarSeries,
    Block,
    ChartGrid,
    Column,
    LineChart,
    Section,
    Series,
    Stat,
    StatRow,
    Table,
)
from stateplay_rl.reporting.numbers import MISSING, compact
from stateplay_rl.reporting.run_data import RunData, column, names_under

TIMINGS = "timings.jsonl"


def cost_section(run: RunData) -> Section:
    """Time and memory; where a judge is paid, its requests first."""
    parts = part_order(names_under(run.timings, "seconds"))
    rows = []
    total = sum(v or 0.0 for name in parts for v in column(run.timings, "seconds", name))
    for name in parts:
        seconds = sum(v or 0.0 for v in column(run.timings, "seconds", name))
        rows.append((name, seconds, seconds / len(run.timings), 100 * seconds / total if total else None))
    columns = (
        Column("part"),
        Column("seconds", True, 1),
        Column("per batch", True, 2),
        Column("% of all", True, 0),
    )
    paid = _paid(run)
    charts = tuple(c for c in (time_chart(run), memory_chart(run), request_chart(run)) if c is not None)
    blocks: tuple[Block, ...] = (*paid, *((ChartGrid(charts),) if charts else ()))
    if rows:
        title = f"Time by part, {compact(total, digits=0)} s in all"
        blocks += (Table("time", title, columns, tuple(rows), "timings.jsonl: seconds"),)
    return Section("cost", "Time, memory and money" if paid else "Time and memory", blocks)


def _paid(run: RunData) -> tuple[Block, ...]:
    """Requests of paid judges and what they cost; nothing where no judge is paid."""
    attempts = column(run.timings, "requests", "attempts")
    if not any(attempts):
        return ()
    costs = [cost for cost, asked in zip(column(run.timings, "requests", "cost"), attempts, strict=True) if asked]
    known = [cost for cost in costs if cost is not None]
    billed = sum(v or 0.0 for v in column(run.timings, "requests", "billed"))
    source = "timings.jsonl: requests"
    priced = len(known) == len(costs)
    return (
        StatRow(
            (
                Stat(
                    "requests", compact(sum(v or 0.0 for v in attempts)), f"{source}.attempts", "refused ones included"
                ),
                Stat("billed, or in doubt", compact(billed), f"{source}.billed"),
                Stat(
                    "cost",
                    compact(sum(known), digits=2) if priced else MISSING,
                    f"{source}.cost",
                    "of the price table" if priced else "judge.requests.prices has no price for the model",
                ),
            )
        ),
    )


def part_order(parts: Sequence[str]) -> list[str]:
    """Parts of a batch in the order in which they happen, unknown ones after them."""
    usual = ("rollout", "score", "rollout_and_score", "signal", "train", "evaluate", "checkpoint")
    known: list[str] = [name for name in usual if name in parts]
    return known + [name for name in parts if name not in known]


def time_chart(run: RunData) -> BarChart | None:
    """Seconds per batch by part, stacked."""
    parts = names_under(run.timings, "seconds")
    if not parts:
        return None
    order = part_order(parts)
    return BarChart(
        "time",
        "Time by part",
        "batch",
        "seconds",
        tuple(str(record.get("batch", index)) for index, record in enumerate(run.timings)),
        tuple(BarSeries(p, column(run.timings, "seconds", p), i) for i, p in enumerate(order)),
        f"{TIMINGS}: seconds",
        stacked=True,
    )


def request_chart(run: RunData) -> BarChart | None:
    """Requests of paid judges per batch; None where no judge is paid."""
    attempts = column(run.timings, "requests", "attempts")
    if not any(attempts):
        return None
    billed = column(run.timings, "requests", "billed")
    refused = tuple(None if a is None else a - (b or 0.0) for a, b in zip(attempts, billed, strict=True))
    return BarChart(
        "requests",
        "Requests by batch",
        "batch",
        "requests",
        tuple(str(record.get("batch", index)) for index, record in enumerate(run.timings)),
        (BarSeries("billed, or in doubt", billed, 0), BarSeries("refused", refused, 1)),
        f"{TIMINGS}: requests.attempts, requests.billed",
        "Held-out groups are counted with the batch before them.",
        stacked=True,
    )


def memory_chart(run: RunData) -> LineChart | None:
    """Peak memory per batch."""
    batches = tuple(
        float(index) if value is None else value for index, value in enumerate(column(run.timings, "batch"))
    )
    line = Series("peak memory", batches, column(run.timings, "peak_memory_mb"), 0)
    if not any(value is not None for value in line.y):
        return None
    source = f"{TIMINGS}: peak_memory_mb"
    return LineChart("memory", "Peak memory", "batch", "MB", (line,), source, y_range=(0.0, 0.0))
