"""`sprl report`: one self-contained page about any sprl directories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stateplay_rl.cli.options import (
    ConfigOption,
    OutOption,
    OverwriteOption,
    QuietOption,
    ResumeOption,
    SetOption,
    resolve_config,
)
from stateplay_rl.config.report import ReportConfig

PathsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        help="sprl directories: runs (finished or not), conditions, groups, scores, audits, verifications.",
    ),
]


def command(
    paths: PathsArgument,
    out: OutOption,
    label_set: Annotated[
        int | None,
        typer.Option(min=2, help="Also write a blind page of N videos for people: half base, half tested policy."),
    ] = None,
    labels: Annotated[
        list[Path] | None, typer.Option(help="Labels that the blind page saved: read back. Repeatable.")
    ] = None,
    label_key: Annotated[
        Path | None, typer.Option(help="key.json of that page; left out: beside the file of labels.")
    ] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write report.html: curves, tables and videos side by side, with every alarm first.

    Two runs given together are compared, for example a run and its shuffled-reward control. The page works
    offline; figures lie beside it as PNG, tables as CSV.
    """
    from rich.console import Console
    from rich.markup import escape

    from stateplay_rl.stages.report import ReportOptions, run

    flags = {
        "label_set": label_set,
        "labels": [str(file) for file in labels] if labels else None,
        "label_key": None if label_key is None else str(label_key),
    }
    resolved = resolve_config(ReportConfig, config, settings, flags)
    summary = run(resolved, paths, ReportOptions(out, resume, overwrite))
    console = Console()
    for name, verdict in summary.verdicts:
        console.print(f"{escape(name)}: {escape(verdict)}", highlight=False)
    console.print(
        f"{summary.embedded_videos} videos inside, {summary.figures} figures, {summary.tables} tables, "
        f"{summary.page_bytes / 1e6:.1f} MB",
        highlight=False,
    )
    console.print(escape(str(summary.html)), highlight=False, soft_wrap=True)
    if summary.label_page is not None:
        console.print(f"blind page: {escape(str(summary.label_page))}", highlight=False, soft_wrap=True)
