"""`sprl score`: parse, call the stage, print what came out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stateplay_rl.cli.options import (
    ConfigOption,
    OutOption,
    OverwriteOption,
    QuietOption,
    ResumeOption,
    SetOption,
    resolve_config,
)
from stateplay_rl.config.score import ScoreConfig

if TYPE_CHECKING:
    from stateplay_rl.stages.score import ScoreSummary


def command(
    groups: Annotated[
        Path,
        typer.Argument(help="groups/ of `sprl rollout`, or a run/ (its finished groups, also while open)."),
    ],
    out: OutOption,
    judge: Annotated[
        str | None,
        typer.Option(help="referee (arena), student, replay, mix, or a plug-in package.module:Class."),
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="For the judge replay: the scores/ directory that answers.")
    ] = None,
    reward_model: Annotated[
        Path | None, typer.Option(help="For the judge student: the reward_model/ directory of `sprl train-rm`.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N groups, by group id.")] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score every group once; can be run again with another judge."""
    flags = {
        "judge.name": judge,
        "judge.scores": None if scores is None else str(scores),
        "judge.reward_model": None if reward_model is None else str(reward_model),
        "limit": limit,
    }
    resolved = resolve_config(ScoreConfig, config, settings, flags)
    # The stage brings pyarrow and numpy along: not before the command line has been parsed.
    from stateplay_rl.stages import score as stage

    _show(stage.run(resolved, stage.ScoreInputs(groups, resume, overwrite), out))


def _show(summary: ScoreSummary) -> None:
    table = Table("", "", show_header=False, box=None, padding=(0, 2, 0, 0))
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
        table.add_row("in doubt", str(summary.in_doubt))
    Console(highlight=False).print(table)
