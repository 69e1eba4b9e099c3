"""`sprl verify`: parse, call the stage, print a line a check, exit 4 when one failed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from stateplay_rl.cli.options import (
    ConfigOption,
    OverwriteOption,
    SetOption,
    resolve_config,
)
from stateplay_rl.config.verify import (
    ActionsConfig,
    DirectoryConfig,
    GoldenConfig,
    InstallConfig,
    ParityConfig,
    SignalConfig,
)
from stateplay_rl.errors import CheckError, InputError
from stateplay_rl.stores.refusal import resolve_out

if TYPE_CHECKING:
    from stateplay_rl.stages.verify import VerifyConfig, VerifySummary

app = typer.Typer(
    help="Check an installation, golden files, a directory, two worlds, a signal, or a long run before it starts.",
    no_args_is_help=True,
)
VerifyOutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Record to write; verify-<utc> when left out. A relative path goes below RL_RUN_ROOT when that is set.",
        callback=lambda out: None if out is None else resolve_out(out),
    ),
]
STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


@app.command("install")
def install(out: VerifyOutOption = None, overwrite: OverwriteOption = False) -> None:
    """Check that this installation computes what it must: about a minute, no GPU, no network."""
    _verify(InstallConfig(), out, overwrite)


@app.command("golden")
def golden(
    folder: Annotated[Path, typer.Argument(help="Folder of golden files, any subset; exported from any checkout.")],
    clips: Annotated[
        Path | None,
        typer.Option("--clips", envvar="STATEPLAY_CLIPS", help="Folder of the real clips that some files describe."),
    ] = None,
    out: VerifyOutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Hold this package against golden files, a line a file with the largest error."""
    _verify(GoldenConfig(folder=folder, clips=clips), out, overwrite)


@app.command("dir")
def directory(
    path: Annotated[Path, typer.Argument(help="Any directory that sprl wrote, finished or not.")],
    search: Annotated[
        list[Path] | None,
        typer.Option("--search", help="Folder in which inputs are looked for by hash. Repeatable."),
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay/--no-replay", help="Compute one score and one batch's NFT steps again.")
    ] = True,
    out: VerifyOutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Re-hash a directory and all that it came from, and replay one score and one batch; say where it breaks."""
    _verify(DirectoryConfig(path=path, search=tuple(search or ()), replay=replay), out, overwrite)


@app.command("signal")
def signal(
    groups: Annotated[Path, typer.Argument(help="groups/ of `sprl rollout`, or a run/.")],
    scores: Annotated[Path | None, typer.Option(help="scores/ of these groups; a run holds its own.")] = None,
    conditions: Annotated[
        Path | None, typer.Option(help="conditions/ of these groups; left out: where they were.")
    ] = None,
    world: Annotated[str | None, typer.Option(help="arena, or the path of a world file.")] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    out: VerifyOutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Is there a signal? Spread of the scores, agreement of gradients, conditions per batch asked for."""
    paths = {"groups": groups, "scores": scores, "conditions": conditions}
    flags = {name: None if path is None else str(path) for name, path in paths.items()}
    resolved = resolve_config(SignalConfig, config, settings, {**flags, "world": world})
    from stateplay_rl.stages import verify_signal

    finish(verify_signal.run(resolved, out, overwrite=overwrite))


@app.command("parity")
def parity(
    world: Annotated[
        list[str] | None, typer.Option("--world", help="arena, or the path of a world file. Give it twice.")
    ] = None,
    conditions: Annotated[
        Path | None, typer.Option(help="conditions/ whose first one is the input; left out: a drawn picture.")
    ] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    out: VerifyOutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Compare two worlds on the same inputs: encode, velocity, states, a short rollout, gradients of module B."""
    flags = {"worlds": world, "conditions": None if conditions is None else str(conditions)}
    resolved = resolve_config(ParityConfig, config, settings, flags)
    from stateplay_rl.stages import verify_parity

    finish(verify_parity.run(resolved, out, overwrite=overwrite))


@app.command("actions")
def actions(
    conditions: Annotated[Path, typer.Argument(help="conditions/ whose real clips calibrate the probes.")],
    groups: Annotated[
        Path | None, typer.Option(help="groups/ of `sprl rollout`, or a run/, whose videos are measured.")
    ] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    out: VerifyOutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Do commanded moves happen? Calibrate on the real clips; what fails there says nothing about groups."""
    flags = {"conditions": str(conditions), "groups": None if groups is None else str(groups)}
    resolved = resolve_config(ActionsConfig, config, settings, flags)
    from stateplay_rl.stages import verify_actions

    finish(verify_actions.run(resolved, out, overwrite=overwrite))


def _verify(config: VerifyConfig, out: Path | None, overwrite: bool) -> None:
    from stateplay_rl.stages.verify import run

    finish(run(config, out, overwrite=overwrite))


def finish(summary: VerifySummary) -> None:
    """Print a summary.

    Raises:
        CheckError: a check failed.
        InputError: every check was skipped.
    """
    show(summary)
    if summary.failed:
        names = ", ".join(_name(line) for line in summary.failed)
        raise CheckError(f"{len(summary.failed)} of {len(summary.lines)} checks failed: {names}", f"see {summary.out}")
    if summary.nothing_checked:
        raise InputError("nothing could be checked: every line was skipped", "see the reasons in the lines")


def show(summary: VerifySummary) -> None:
    """Print the lines of a summary."""
    console = Console(highlight=False, soft_wrap=True)
    width = max((len(_name(line)) for line in summary.lines), default=0)
    for line in summary.lines:
        text = Text(f"{line.status:<8}", style=STYLES[line.status]).append(f"{_name(line):<{width}}  ", style="default")
        console.print(text.append(_measured(line) + line.detail, style="not bold default"))
        todo = getattr(line, "todo", "")
        if todo and line.status != "passed":
            console.print(f"{'':<8}  -> {todo}", markup=False)
    for sentence in summary.words:
        console.print(sentence, markup=False)
    console.print(str(summary.out), markup=False)


def _name(line: object) -> str:
    return str(getattr(line, "file", None) or getattr(line, "name", ""))


def _measured(line: object) -> str:
    error, tolerance = getattr(line, "largest_error", None), getattr(line, "tolerance", None)
    if error is None or tolerance is None:
        return ""
    allowed = f"tolerance {tolerance:.0e}" if tolerance > 0 else "must be exact"
    return f"error {error:.1e} ({allowed}), "
