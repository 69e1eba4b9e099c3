"""`sprl build-conditions`: parse, call the stage, print what came out."""

from __future__ import annotations

import os
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
    SeedOption,
    SetOption,
    resolve_config,
)
from stateplay_rl.config.conditions import ConditionsConfig

if TYPE_CHECKING:
    from stateplay_rl.stages.build_conditions import BuildResult


def command(
    out: OutOption,
    csv: Annotated[
        Path | None,
        typer.Option(help="Metadata CSV: video, action, distribution, prompt, strategy, category."),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder that the CSV's paths start from; default the CSV's own.")
    ] = None,
    clips: Annotated[
        Path | None, typer.Option(help="Folder of clip folders, instead of a CSV; videos are optional.")
    ] = None,
    episodes: Annotated[
        Path | None, typer.Option(help="CSV with clip,episode: clusters are then known, not inferred.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="stateplay (832x480, window 10; the default) or arena (96x64, window 4)."),
    ] = None,
    heldout: Annotated[int | None, typer.Option(help="Conditions that no training ever sees.")] = None,
    limit: Annotated[int | None, typer.Option(help="Examine at most so many rows, balanced.")] = None,
    classes: Annotated[
        list[str] | None, typer.Option(help="Examine this mechanics class only; repeat for more.")
    ] = None,
    sample_per_class: Annotated[int | None, typer.Option(help="Examine at most so many rows of each class.")] = None,
    seed: SeedOption = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; default one per core. The output is the same.")
    ] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check, hash, cluster and split all clips; every rejected row gets its reason."""
    flags = {
        "preset": preset,
        "split.heldout": heldout,
        "split.seed": seed,
        "select.limit": limit,
        "select.classes": _separated(classes),
        "select.sample_per_class": sample_per_class,
    }
    resolved = resolve_config(ConditionsConfig, config, settings, flags)
    # The stage brings pyarrow, av and numpy along: not before the command line has been parsed.
    from stateplay_rl.stages import build_conditions as stage

    mode = stage.BuildMode(workers or len(os.sched_getaffinity(0)), resume, overwrite)
    sources = stage.ConditionSources(csv, data_root, clips, episodes)
    _show(stage.run(resolved, sources, out, mode))


def _separated(classes: list[str] | None) -> list[str] | None:
    """`--classes a,b` means the same as `--classes a --classes b`."""
    return [name.strip() for text in classes for name in text.split(",")] if classes else None


def _show(result: BuildResult) -> None:
    summary = result.summary
    console = Console(highlight=False)
    table = Table("", "", show_header=False, box=None, padding=(0, 2, 0, 0))
    done = "was already finished" if result.already_sealed else "finished"
    table.add_row("output", Text(f"{result.path} {done}", overflow="fold"))
    if result.reused_rows and not result.already_sealed:
        table.add_row("resumed", f"{result.reused_rows} of {summary.rows_examined} rows were already examined")
    table.add_row("eligible", f"[bold]{summary.eligible}[/] of {summary.rows_examined} rows")
    for name, counts in summary.by_class.items():
        table.add_row("", Text(f"{name}: {counts['pass']} pass, {counts['heldout']} held out"))
    table.add_row("rejected", str(summary.rejected))
    for code, facts in summary.rejected_by_code.items():
        table.add_row("", Text(f"{code}: {facts['rows']} ({facts['meaning']})"))
    table.add_row("warnings", str(sum(facts["conditions"] for facts in summary.warnings_by_code.values())))
    for code, facts in summary.warnings_by_code.items():
        extra = "" if facts["count"] == facts["conditions"] else f", {facts['count']} in all"
        table.add_row("", Text(f"{code}: {facts['conditions']} conditions{extra} ({facts['meaning']})"))
    if summary.hud_check is not None:
        check = summary.hud_check
        table.add_row(
            "first frames",
            f"{check['conditions']} read against the state columns ({check['reader']}): "
            f"{check['disagreeing']} disagree, {check['unreadable']} unreadable",
        )
    clusters = summary.clusters
    table.add_row("clusters", f"{clusters['count']}, largest {clusters['largest']}, {clusters['evidence']}")
    table.add_row("pool", f"{summary.pool['pass']} pass, {summary.pool['heldout']} held out")
    table.add_row("stages", f"A {summary.stage_a}, C {summary.stage_c} (the rest of pass)")
    for note in summary.notes:
        table.add_row("note", Text(note))
    console.print(table)
