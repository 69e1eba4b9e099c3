"""`sprl verify profile`: parse, time, print the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from stateplay_rl.cli.options import ConfigOption, OverwriteOption, SetOption, resolve_config
from stateplay_rl.cli.verify import VerifyOutOption
from stateplay_rl.config.verify import ProfileConfig


def profile(
    world: Annotated[
        str | None,
        typer.Option("--world", help="arena, a world file's path, or with --random-weights also stateplay-5b."),
    ] = None,
    random_weights: Annotated[
        bool | None, typer.Option("--random-weights", help="Draw weights of the world's shapes; reads no weight file.")
    ] = None,
    cap_gib: Annotated[
        float | None, typer.Option("--cap-gib", help="Take no more of the GPU's memory, as on a smaller card.")
    ] = None,
    compare: Annotated[
        str | None, typer.Option("--compare", help="diffusers: time the library's own models on the same inputs.")
    ] = None,
    frames: Annotated[int | None, typer.Option(help="Frames of the video, 1 (mod 4).")] = None,
    row: Annotated[
        list[str] | None, typer.Option("--row", help="Only rows and parts that begin so. Repeatable.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Rows that would begin later than this are left out and said so.")
    ] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    out: VerifyOutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Time this machine: ceilings, then sampling, decoding and training on one video, each against its floor."""
    flags = {
        "world": world,
        "random_weights": random_weights,
        "cap_gib": cap_gib,
        "compare": compare,
        "frames": frames,
        "rows": row,
        "seconds": seconds,
    }
    resolved = resolve_config(ProfileConfig, config, settings, flags)
    from stateplay_rl.stages.profile.run import run

    summary = run(resolved, out, overwrite=overwrite)
    show(summary.record)
    Console(highlight=False, soft_wrap=True).print(str(summary.out), markup=False)


def show(record: Mapping[str, Any]) -> None:
    """Print a profile's record as tables."""
    console = Console(highlight=False)
    ceilings, world = record["ceilings"], record["world"]
    console.print(
        f"{record['machine']['device']}, torch {record['machine']['torch']}, {world['preset']}, "
        f"{world['frames']} frames, {world['tokens']} tokens, {world['compute_dtype']}",
        markup=False,
    )
    attention = ", ".join(
        f"{name} {line['forward_tflops']:.3g}/{line['both_tflops']:.3g}" for name, line in ceilings["attention"].items()
    )
    console.print(
        f"ceilings: matrix product {ceilings['matmul_tflops']:.3g} TFLOP/s, memory "
        f"{ceilings['memory_gb_per_second']:.0f} GB/s, attention forward/both (TFLOP/s): {attention}",
        markup=False,
    )
    console.print(_rows(record))
    if record["library"]:
        console.print(_library(record["library"]))
    for reason in (*_not_measured(record["rows"]), *_not_measured(record["library"] or {})):
        console.print(reason, markup=False)
    for name in ("checkpointing", "compilation", "loop_without_waiting", "transformer_drift", "vae_drift"):
        if name in record:
            facts = ", ".join(f"{key} {_short(value)}" for key, value in record[name].items())
            console.print(f"{name.replace('_', ' ')}: {facts}", markup=False)


def _table(*headers: str) -> Table:
    """Names left and whole, numbers right; fits 80 columns."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for place, header in enumerate(headers):
        table.add_column(header, justify="left" if place == 0 else "right", no_wrap=True)
    return table


def _rows(record: Mapping[str, Any]) -> Table:
    table = _table("work", "seconds", "floor", "x floor", "to reach", "peak GiB")
    for name, line in _measured(record["rows"]):
        table.add_row(
            name,
            f"{line['seconds']:.4f}",
            _short(line["floor"]),
            _short(line["to_floor"]),
            _short(line.get("target")),
            _short(line["peak_gib"]),
        )
    return table


def _library(lines: Mapping[str, Any]) -> Table:
    table = _table("diffusers", "seconds", "peak GiB", "first call")
    for name, line in _measured(lines):
        table.add_row(name, f"{line['seconds']:.4f}", _short(line["peak_gib"]), f"{line['first_seconds']:.1f}")
    return table


def _measured(lines: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, line) for name, line in lines.items() if "seconds" in line]


def _not_measured(lines: Mapping[str, Any]) -> list[str]:
    """A line for each row without a figure, with its reason; the whole message stands in the record."""
    return [
        f"not measured: {name}: {'. '.join(str(line.get('failed') or line['left_out']).split('. ')[:2])}"
        for name, line in lines.items()
        if "seconds" not in line
    ]


def _short(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
