"""`sprl audit-ckpt`: parse, call the stage, print the findings, exit 4 unless passed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stateplay_rl.cli.options import (
    ConfigOption,
    OptionalOutOption,
    OverwriteOption,
    QuietOption,
    ResumeOption,
    SetOption,
    resolve_config,
)
from stateplay_rl.config.audit import AuditConfig
from stateplay_rl.errors import CheckError

if TYPE_CHECKING:
    from stateplay_rl.stages.audit_ckpt import AuditSummary

_VERDICT_STYLE = {"passed": "bold green", "partial": "bold yellow", "failed": "bold red"}
_SEVERITY_STYLE = {"failure": "red", "warning": "yellow", "note": "dim"}


def command(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(help="Weight file, index or folder; left out: the checkpoint that --world names."),
    ] = None,
    world: Annotated[
        str | None, typer.Option(help="arena or a world file; left out: inferred from the shapes.")
    ] = None,
    base: Annotated[list[Path] | None, typer.Option(help="File or folder of the base model. Repeatable.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Transition tokenizer that the checkpoint was trained with.")
    ] = None,
    training_config: Annotated[
        Path | None, typer.Option(help="Config of the SFT run: states heads, levels and what else no shape shows.")
    ] = None,
    scan: Annotated[bool, typer.Option("--scan", help="Read every tensor: NaN, Inf, zeros.")] = False,
    allow_init: Annotated[
        bool,
        typer.Option("--allow-init", help="Inspect with random parts; such an audit cannot be trained on."),
    ] = False,
    hash_all: Annotated[bool, typer.Option("--hash", help="Hash files of any size, whatever the verdict.")] = False,
    out: OptionalOutOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say what a checkpoint is, and where every parameter comes from; exit 4 unless it passes."""
    flags = {
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "world": world,
        "base": [str(path) for path in base] if base else None,
        "tokenizer": None if tokenizer is None else str(tokenizer),
        "training_config": None if training_config is None else str(training_config),
        "scan": scan or None,
        "allow_init": allow_init or None,
        "hash_all": hash_all or None,
    }
    resolved = resolve_config(AuditConfig, config, settings, flags)
    # The stage brings numpy and pyarrow along: not before the command line has been parsed.
    from stateplay_rl.stages import audit_ckpt as stage

    summary = stage.run(resolved, out, stage.AuditMode(resume, overwrite))
    _show(summary)
    if summary.verdict != "passed":
        reasons = "; ".join(summary.audit["reasons"])
        hint = summary.audit["complete_with"] or f"details: {summary.out}/audit.json"
        raise CheckError(f"the audit {'is partial' if summary.verdict == 'partial' else 'failed'}: {reasons}", hint)


def _show(summary: AuditSummary) -> None:
    audit = summary.audit
    console = Console(highlight=False)
    facts = Table("", "", show_header=False, box=None, padding=(0, 2, 0, 0))
    facts.add_row("verdict", Text(audit["verdict"], style=_VERDICT_STYLE[audit["verdict"]]))
    for reason in audit["reasons"] or audit["untrainable"]:
        facts.add_row("", Text(reason, overflow="fold"))
    facts.add_row("model", Text(audit["class_text"]))
    inferred = " (inferred from shapes)" if audit["preset_inferred"] and audit["preset"] else ""
    facts.add_row("world", Text(f"{audit['world'] or 'unknown'}{inferred}"))
    if audit.get("checkout"):
        facts.add_row("checkout", Text(_checkout_line(audit["checkout"]), overflow="fold"))
        for difference in audit["checkout"]["differences"]:
            facts.add_row("differs", Text(difference, overflow="fold"))
    for file in audit["files"]:
        facts.add_row(file["role"], Text(_file_line(file), overflow="fold"))
    for prefix, count in audit["prefixes"].items():
        facts.add_row("prefix", Text(f"{prefix} off {count} names"))
    if any(row["from_shapes"] is not None for row in audit["architecture"]):
        facts.add_row("shapes", _architecture(audit))
    for name, text in audit["stated"].items():
        facts.add_row("stated", Text(f"{name} {text}"))
    if audit["assumed"]:
        facts.add_row("assumed", Text(", ".join(audit["assumed"]), style="yellow"))
    for finding in audit["health"]:
        style = _SEVERITY_STYLE[finding["severity"]]
        facts.add_row(finding["severity"], Text(finding["message"], style=style, overflow="fold"))
    if audit["sources"]:
        text = ", ".join(f"{count} {source}" for source, count in audit["sources"].items())
        facts.add_row("sources", Text(f"{text} (parameters and buffers)"))
    facts.add_row("output", Text(f"{summary.out} {'was already finished' if summary.already_done else 'written'}"))
    if audit["coverage"]:
        console.print(_coverage(audit))
    console.print(facts)


def _architecture(audit: Mapping[str, Any]) -> Text:
    """Sizes from the shapes; where the description differs, both."""
    text = Text()
    for row in audit["architecture"]:
        shown = "?" if row["from_shapes"] is None else str(row["from_shapes"])
        more = f" (described: {row['described']})" if row["disagrees"] else ""
        text.append(f"{row['setting']} {shown}{more}", style="bold red" if row["disagrees"] else "")
        text.append("  ")
    return text


def _checkout_line(checkout: Mapping[str, Any]) -> str:
    commit = checkout["commit"][:8] if checkout["commit"] else "no git repository"
    changed = ", local changes" if checkout["dirty"] else ""
    return f"{checkout['path']}: {commit}{changed} (reference {checkout['reference_commit']})"


def _file_line(file: Mapping[str, Any]) -> str:
    sha256 = file["sha256"][:12] if file["sha256"] else "not hashed (--hash)"
    what = f"{file['kind']}, {file['state']}, {file['size']} bytes, {file['tensors']} tensors"
    return f"{file['path']}: {what}, {sha256}"


def _coverage(audit: Mapping[str, Any]) -> Table:
    table = Table(title="coverage, tensors", title_justify="left", box=None, padding=(0, 1))
    table.add_column("module", no_wrap=True, min_width=38)
    for name in ("expected", "found", "missing", "extra", "shape", "dtypes"):
        table.add_column(name, justify="right")
    for row in audit["coverage"]:
        bad = row["missing"] or row["unexpected"] or row["wrong_shape"]
        counts = [str(row[key] or "") for key in ("expected", "found", "missing", "unexpected", "wrong_shape")]
        table.add_row(row["module"], *counts, " ".join(row["dtypes"]), style="yellow" if bad else None)
    return table
