"""What `sprl score` prints at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from stateplay_rl.stages.score import ScoreSummary
    from stateplay_rl.stages.score_preview import PreviewSummary
    from stateplay_rl.stages.score_probe import ProbeSummary


def _pairs() -> Table:
    return Table("", "", show_header=False, box=None, padding=(0, 2, 0, 0))


def show_scores(summary: ScoreSummary) -> None:
    """Scores, failures, what is in doubt, and what it cost."""
    table = _pairs()
    done = "was already finished" if summary.already_done else "finished"
    table.add_row("output", Text(f"{summary.out} {done}", overflow="fold"))
    table.add_row("judge", Text(summary.judge_id))
    table.add_row("scored", f"[bold]{summary.scored}[/] of {summary.groups} groups")
    if summary.reward_mean is not None:
        table.add_row("mean", f"[bold]{summary.reward_mean:.2f}[/] of 100 points")
    for name, mean in summary.reward_by_class.items():
        table.add_row("", Text(f"{name}: {mean:.2f}"))
    if summary.std_within is not None:
        table.add_row("spread", f"{summary.std_within:.2f} points, mean deviation inside a group")
    if summary.scores_at_0 is not None and summary.scores_at_100 is not None:
        table.add_row("extremes", f"{summary.scores_at_0:.1%} at 0, {summary.scores_at_100:.1%} at 100")
    table.add_row("failed", str(summary.failed))
    for reason, count in summary.failed_reasons.items():
        table.add_row("", Text(f"{reason}: {count}"))
    if summary.in_doubt:
        table.add_row("in doubt", f"{summary.in_doubt} (listed in verdicts.jsonl; they may have been paid)")
        table.add_row(
            "", Text(f"to send them again: the same command with --resume --resend-in-doubt, --out {summary.out}")
        )
    console = Console(highlight=False)
    console.print(table)
    if summary.requests is not None and summary.requests["attempts"]:
        console.print(_costs(summary.requests))


def _costs(requests: dict[str, Any]) -> Table:
    table = Table(
        "requests of these groups",
        "attempts",
        "groups",
        "input tokens",
        "output tokens",
        "cost",
        "median s",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for row in requests["rows"]:
        table.add_row(
            Text(row["outcome"]),
            str(row["attempts"]),
            str(row["groups"]),
            f"{row['input_tokens']:,}",
            f"{row['output_tokens']:,}",
            _cost(row["cost"]),
            "-" if row["seconds"] is None else f"{row['seconds']:.2f}",
        )
    billed = f"{requests['billed']} billed or in doubt"
    table.add_row("[bold]all[/]", f"[bold]{requests['attempts']}[/]", "", billed, "", _cost(requests["cost"]), "")
    return table


def _cost(cost: float | None) -> str:
    return "no price" if cost is None else f"{cost:.4f}"


def show_preview(summary: PreviewSummary) -> None:
    """What a dry run found."""
    table = _pairs()
    table.add_row("preview", Text(str(summary.page), overflow="fold"))
    table.add_row("groups", str(summary.groups))
    for reason, count in summary.unfit.items():
        table.add_row("unfit", Text(f"{reason}: {count}"))
    table.add_row("pictures", f"{summary.image_bytes / 1e6:.1f} MB in all")
    table.add_row("input tokens", f"about {summary.input_tokens:,} in all")
    table.add_row("estimate", Text(summary.estimate))
    table.add_row("sent", "nothing")
    Console(highlight=False).print(table)


def show_probe(summary: ProbeSummary) -> None:
    """The probe's numbers, the one number first."""
    table = _pairs()
    table.add_row("output", Text(str(summary.out), overflow="fold"))
    table.add_row("judge", Text(summary.judge_id))
    for name, text in summary.lines:
        table.add_row(name, Text(text))
    Console(highlight=False).print(table)
