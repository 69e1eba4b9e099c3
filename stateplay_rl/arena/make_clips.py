"""``python -m stateplay_rl.arena.make_clips --out DIR --clips N --seed S``: arena's training data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stateplay_rl.arena.clips import METADATA_FILE, write_clips
from stateplay_rl.errors import SprlError, UsageError


def parse_class_mix(text: str) -> dict[str, float] | None:
    """``normal=0.6,Macro_success=0.4`` -> shares; empty -> None (the real data's mix).

    Raises:
        UsageError: not of that form.
    """
    if not text.strip():
        return None
    mix: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            mix[name.strip()] = float(share)
        except ValueError as error:
            raise UsageError(f"class mix {part!r} is not name=share", "--class-mix normal=3,macro_fail=1") from error
    return mix


def main(
    out: Annotated[Path, typer.Option(help="Folder to write; must not exist, or be empty.")],
    clips: Annotated[int, typer.Option(help="Number of clips.")],
    seed: Annotated[int, typer.Option(help="Seed of the conditions.")] = 0,
    class_mix: Annotated[
        str,
        typer.Option(help="Shares of the classes: normal=0.6,Macro_success=0.1,... Default: the real data's."),
    ] = "",
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
) -> None:
    """Write clips of the true engine in the format of the real data."""
    try:
        summary = write_clips(out, clips, seed, parse_class_mix(class_mix), workers)
    except SprlError as error:
        Console(stderr=True).print(str(error), style="red", markup=False)
        sys.exit(error.exit_code)
    counts = ", ".join(f"{name} {number}" for name, number in summary.by_class.items())
    Console().print(f"{summary.clips} clips in {summary.folder / METADATA_FILE} ({counts})", soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
