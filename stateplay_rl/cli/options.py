"""Option types that several subcommands share: one name, one meaning, one help text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from stateplay_rl import runtime
from stateplay_rl.config.base import FrozenConfig, load_config
from stateplay_rl.stores.refusal import resolve_out

Schema = TypeVar("Schema", bound=FrozenConfig)


def _below_run_root(out: Path | None) -> Path | None:
    return None if out is None else resolve_out(out)


def _quiet(quiet: bool) -> bool:
    runtime.set_quiet(quiet)
    return quiet


OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help="Directory to write. A relative path goes below RL_RUN_ROOT when that is set.",
        callback=_below_run_root,
    ),
]
OptionalOutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Directory to write; named after the input when left out. A relative path goes below "
        "RL_RUN_ROOT when that is set.",
        callback=_below_run_root,
    ),
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with an unfinished directory.")]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Empty the output directory first, whatever it holds.")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file with settings; the defaults fill the rest.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override one setting, as in a.b=3. Repeatable."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on the terminal.", callback=_quiet)]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of all random draws.")]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda or cuda:N; left out: a GPU when there is one.")
]
ThreadsOption = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads of the numerical libraries.")]


def resolve_config(
    schema: type[Schema],
    file: Path | None,
    overrides: Sequence[str] | None,
    flags: Mapping[str, Any] | None = None,
) -> Schema:
    """Config of a command: defaults, then ``--config``, then ``--set``, then the command's own flags.

    Args:
        schema: the command's config class.
        file: value of `ConfigOption`.
        overrides: value of `SetOption`.
        flags: dotted key -> value of a flag of its own; None means not given.

    Raises:
        UsageError, InputError: as `load_config`.
    """
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    return load_config(schema, file, overrides or (), given)
