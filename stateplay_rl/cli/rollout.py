"""`sprl rollout`: parse, call the stage, print what came out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

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
from stateplay_rl.config.rollout import RolloutConfig, sampler_settings

if TYPE_CHECKING:
    from stateplay_rl.stages.rollout import RolloutSummary


def command(
    conditions: Annotated[Path, typer.Argument(help="conditions/ of `sprl build-conditions`.")],
    out: OutOption,
    world: Annotated[str | None, typer.Option(help="`arena`, or the path of a world file.")] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="Exported policy (run/policy/<sha>.safetensors) laid over the base weights."),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="transition, coupling, joint or full: what the policy's hash covers.")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="pass (default) or heldout.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N conditions in stored order.")] = None,
    skip: Annotated[int | None, typer.Option(min=0, help="Leave out the first N conditions.")] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            metavar="SOLVER[+CACHE]",
            help="euler (default), ab2, dpm2m, unipc2 or unipc3; +taylor or +firstblock caches velocities.",
        ),
    ] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    seed: SeedOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Sample a group of candidates for every condition, with seeds, latents and videos."""
    flags = {
        "world": world,
        "policy": None if policy is None else str(policy),
        "mode": mode,
        "pool": pool,
        "limit": limit,
        "skip": skip,
        "seed": seed,
        **(sampler_settings(sampler) if sampler is not None else {}),
    }
    resolved = resolve_config(RolloutConfig, config, settings, flags)
    from stateplay_rl.stages import rollout as stage

    _show(stage.run(resolved, stage.RolloutInputs(conditions, resume, overwrite), out))


def _show(summary: RolloutSummary) -> None:
    from stateplay_rl.runtime import ranks

    if not ranks().is_main:
        return
    done = "was already finished" if summary.already_done else "finished"
    console = Console(highlight=False)
    console.print(f"{summary.out} {done}", markup=False, soft_wrap=True)
    console.print(
        f"{summary.groups} groups, {summary.candidates} candidates, policy {summary.policy_sha256[:12]}",
        markup=False,
    )
    if summary.without_reference:
        console.print(f"{summary.without_reference} groups have no reference video (no clip was given)")
