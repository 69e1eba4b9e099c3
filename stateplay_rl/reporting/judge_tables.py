"""Tables about judges: what the requests cost, and how far two judges agree inside groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateplay_rl.judges.agreement import agreement
from stateplay_rl.reporting.blocks import Block, Column, Prose, Section, Table
from stateplay_rl.reporting.cards import CandidateScore
from stateplay_rl.reporting.context import ReportContext
from stateplay_rl.reporting.json_files import optional_object
from stateplay_rl.reporting.score_files import ScoreFiles, read_scores
from stateplay_rl.reporting.sources import Source
from stateplay_rl.stores import layout

_AGREEMENT_NOTE = (
    "Taken inside groups, because only differences inside a group train. Correlation: of scores after each group's "
    "mean is taken off, with a 95 % bootstrap interval over groups. Pairs alike: of the pairs that neither judge ties."
)


def cost_section(source: Source) -> Section | None:
    """Attempts, tokens and cost by outcome; None for a judge that pays nothing."""
    costs = _summary(source).get("requests")
    if not isinstance(costs, Mapping) or not costs.get("rows"):
        return None
    columns = (
        Column("outcome"),
        Column("attempts", True),
        Column("groups", True),
        Column("input tokens", True),
        Column("output tokens", True),
        Column("cost", True, 4),
        Column("median seconds", True, 2),
    )
    names = ("outcome", "attempts", "groups", "input_tokens", "output_tokens", "cost", "seconds")
    rows = [tuple(row.get(name) for name in names) for row in costs["rows"]]
    rows.append(("all", costs["attempts"], None, None, None, costs["cost"], None))
    note = (
        f"{costs['billed']} attempts were or may have been billed; those in doubt are priced as paid. "
        "Attempts of all commands on these groups are counted. No cost is shown where the price table has no price."
    )
    table = Table("costs", "Requests", columns, tuple(rows), f"{layout.SUMMARY}: requests", note)
    return Section("costs", "What it cost", (table,))


def agreement_section(source: Source, files: ScoreFiles, context: ReportContext) -> Section | None:
    """One table per other scores directory that judged some of the same groups; None without any."""
    blocks: list[Block] = []
    own = complete(files.scores)
    others = [other for other in context.sources if other.schema == "scores" and other.path != source.path]
    for number, other in enumerate(others):
        read = read_scores(other.path)
        classes = {**read.classes, **files.classes}
        rows = agreement(own, complete(read.scores), classes)
        if rows[0].groups == 0:
            blocks.append(Prose(f"{other.name} and {source.name} have no fully judged group in common.", "caution"))
            continue
        columns = (
            Column("class"),
            Column("groups", True),
            Column("correlation", True, 3),
            Column("from", True, 3),
            Column("to", True, 3),
            Column("% pairs alike", True, 0),
            Column("% pairs tied", True, 0),
            Column("% same best", True, 0),
            Column("mean difference", True, 1),
            Column("scatter", True, 1),
        )
        cells = tuple(
            (
                row.name,
                row.groups,
                row.correlation,
                row.low,
                row.high,
                _percent(row.pairs_alike),
                _percent(row.pairs_tied),
                _percent(row.best_alike),
                row.difference,
                row.scatter,
            )
            for row in rows
        )
        title = f"{source.name} and {other.name}"
        where = f"{layout.SCORES} of both; difference: {other.name} minus {source.name}, points"
        blocks.append(Table(f"agreement-{number}", title, columns, cells, where, _AGREEMENT_NOTE))
    return Section("agreement", "Agreement with other judges", tuple(blocks)) if blocks else None


def complete(scores: Mapping[str, tuple[CandidateScore, ...]]) -> dict[str, list[float]]:
    """Scores of the groups whose every candidate has one."""
    return {
        group_id: [outcome.score for outcome in outcomes if outcome.score is not None]
        for group_id, outcomes in scores.items()
        if outcomes and all(outcome.score is not None for outcome in outcomes)
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _summary(source: Source) -> dict[str, Any]:
    """`summary.json` of a scores directory; empty where none was written."""
    return optional_object(source.path, layout.SUMMARY)
