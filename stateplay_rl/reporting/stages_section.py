"""The stages of a run: its segments with their judges, and what the audits of stage C found."""

from __future__ import annotations

from collections.abc import Sequence

from stateplay_rl.reporting.blocks import Block, ChartGrid, Column, LineChart, Number, Section, Series, Table
from stateplay_rl.reporting.numbers import MISSING, mapping_of, mean
from stateplay_rl.reporting.run_data import Record, RunData, column, count, stage_name
from stateplay_rl.reporting.sources import Source
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import read_lines
from stateplay_rl.stores.sealed import read_manifest
from stateplay_rl.stores.segments import Segment, list_segments

_LEAD = "One pass over the conditions: each stage goes on where the one before it ended, and no condition comes twice."


def stages_section(source: Source, run: RunData) -> Section | None:
    """The section; None for a run of one segment without audits: there is nothing to tell apart."""
    segments = list_segments(source.path)
    audits = [record for record in run.metrics if mapping_of(record, "audit")]
    if len(segments) < 2 and not audits:
        return None
    blocks: list[Block] = [_segment_table(segments, run)]
    if audits:
        blocks += [ChartGrid((_audit_chart(audits),)), _audit_table(audits)]
    return Section("stages", "Stages and audits", tuple(blocks), _LEAD)


def _segment_table(segments: Sequence[Segment], run: RunData) -> Table:
    rows, left = [], list(run.metrics)
    for segment in segments:
        done = read_manifest(segment.path).extra.get("batches") if segment.sealed else None
        own, left = (left, []) if done is None else (left[: int(done)], left[int(done) :])
        rows.append(_segment_row(segment, own))
    columns = (
        Column("segment", mono=True),
        Column("what"),
        Column("judge"),
        Column("state"),
        Column("batches", True, 0),
        Column("groups", True, 0),
        Column("failed", True, 0),
        Column("first reward", True, 1),
        Column("mean", True, 1),
        Column("last", True, 1),
    )
    note = "Rewards of two judges lie on two scales: compare inside a row only."
    return Table("segments", "Segments", columns, tuple(rows), "segments/*/verdicts.jsonl; metrics.jsonl", note)


def _segment_row(segment: Segment, own: Sequence[Record]) -> tuple[str | Number, ...]:
    rewards = [value for value in column(own, "reward_mean") if value is not None]
    more = f", {segment.extension} more conditions" if segment.extension else ""
    return (
        segment.path.name,
        stage_name(segment.kind) + more,
        _judge(segment),
        "sealed" if segment.sealed else "open",
        len(own),
        sum(count(record, "groups") for record in own),
        sum(count(record, "groups_failed") for record in own),
        rewards[0] if rewards else None,
        mean(rewards),
        rewards[-1] if rewards else None,
    )


def _judge(segment: Segment) -> str:
    """Who scored its first group; a dash before there is one."""
    log = segment.path / layout.VERDICTS
    lines = read_lines(log, allow_open_end=not segment.sealed) if log.is_file() else iter(())
    first = next(lines, None)
    return MISSING if first is None else str(first.get("judge_id"))


def _audit_chart(audits: Sequence[Record]) -> LineChart:
    numbers = tuple(float(count(record, "batch")) for record in audits)
    found = Series("student and auditing judge", numbers, column(audits, "audit", "pairwise"), 0)
    return LineChart(
        "audits",
        "Does the student still agree with the auditing judge?",
        "batch",
        "pairs ordered alike, 0 to 1",
        (found,),
        "metrics.jsonl: audit.pairwise",
        "A fall means that the policy has moved to where the student is wrong; below its gate's threshold the run "
        "pauses.",
        y_range=(0.0, 1.0),
    )


def _audit_table(audits: Sequence[Record]) -> Table:
    columns = (
        Column("batch", True, 0),
        Column("groups compared", True, 0),
        Column("not scored by the auditor", True, 0),
        Column("% not scored by the student", True, 1),
        Column("pairs alike", True, 3),
    )
    failed = [None if value is None else 100 * value for value in column(audits, "audit", "student_failed")]
    parts = [
        column(audits, "batch"),
        column(audits, "audit", "groups"),
        column(audits, "audit", "unscored"),
        failed,
        column(audits, "audit", "pairwise"),
    ]
    rows = tuple(zip(*parts, strict=True))
    return Table("audits", "Every audit", columns, rows, "metrics.jsonl: audit")
