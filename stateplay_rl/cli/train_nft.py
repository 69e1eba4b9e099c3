"""`sprl train-nft`: parse, call the stage, print what came out."""

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
    SeedOption,
    SetOption,
    resolve_config,
)
from stateplay_rl.config.train_nft import TrainNftConfig

if TYPE_CHECKING:
    from stateplay_rl.stages.train_nft.run import TrainSummary


def command(
    conditions: Annotated[Path, typer.Argument(help="conditions/ of `sprl build-conditions`.")],
    out: OutOption,
    config: ConfigOption = None,
    settings: SetOption = None,
    world: Annotated[str | None, typer.Option(help="`arena`, or the path of a world file.")] = None,
    audit: Annotated[Path | None, typer.Option(help="Passed audit of the world (`sprl audit-ckpt`).")] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="openai (any compatible server: --set judge.base_url=URL), student (--reward-model DIR), referee "
            "(arena), replay, mix, or a plug-in package.module:Class."
        ),
    ] = None,
    mode: Annotated[str | None, typer.Option(help="transition, coupling, joint or full.")] = None,
    groups: Annotated[
        Path | None, typer.Option(help="One hand-made batch: groups/ of `sprl rollout` (with --scores).")
    ] = None,
    scores: Annotated[Path | None, typer.Option(help="The scores/ of --groups.")] = None,
    stage: Annotated[
        str | None, typer.Option(help="a, or c: goes on in A's run with the student, under its gate.")
    ] = None,
    extend: Annotated[
        int | None, typer.Option(min=1, help="Add conditions to stage A of a finished run (the plan's step is 280).")
    ] = None,
    reward_model: Annotated[
        Path | None, typer.Option(help="Stage C: reward_model/ with the gate of the judging student.")
    ] = None,
    force_without_gate: Annotated[
        bool,
        typer.Option("--force-without-gate", help="Stage C without its gate: at most 10 batches, marked smoke."),
    ] = False,
    off_policy: Annotated[
        bool, typer.Option("--off-policy", help="Accept groups of another policy than old; recorded.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, and stop.")] = False,
    seed: SeedOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train on policy with DiffusionNFT: roll out, score, update, follow with old, checkpoint.

    Several processes: accelerate launch -m stateplay_rl train-nft ... (GPUs), or
    ACCELERATE_USE_CPU=true python -m torch.distributed.run --nproc_per_node 2 -m stateplay_rl train-nft ...
    """
    flags = {
        "world": world,
        "audit": None if audit is None else str(audit),
        "judge.name": judge,
        "mode": mode,
        "seed": seed,
        "stage": stage,
        "extend": extend,
        # One directory: the student that judges, and whose gate is asked for.
        "judge.reward_model": str(reward_model) if reward_model is not None and judge == "student" else None,
        "reward_model": None if reward_model is None else str(reward_model),
        "force_without_gate": True if force_without_gate else None,
        "off_policy": True if off_policy else None,
    }
    resolved = resolve_config(TrainNftConfig, config, settings, flags)
    from stateplay_rl.stages.train_nft import plan, run

    inputs = run.TrainInputs(conditions, groups, scores, resume, overwrite)
    if dry_run:
        _show_plan(plan.make_plan(resolved, inputs, out))
        return
    _show(run.run(resolved, inputs, out))


def _show_plan(rows: list[tuple[str, str]]) -> None:
    table = Table("", "", show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(name, value)
    Console(highlight=False).print(table)


def _segment(summary: TrainSummary) -> str:
    failed = summary.conditions - summary.scored
    again = f", {failed} failed (re-score them: sprl score {summary.out}; they are not drawn again)" if failed else ""
    return f"{summary.scored} of {summary.conditions} groups judged{again}; {summary.left} conditions left in the pass"


def _show(summary: TrainSummary) -> None:
    from stateplay_rl.runtime import ranks

    if not ranks().is_main:
        return
    table = Table("", "", show_header=False, box=None, padding=(0, 2, 0, 0))
    done = "was already finished" if summary.already_done else "finished"
    # Folded, not cut: paths can be copied.
    table.add_row("output", Text(f"{summary.out} {done}", overflow="fold"))
    table.add_row("trained", f"{summary.batches} batches, {summary.optimizer_steps} optimizer steps")
    booked = ", ".join(f"{count} {state}" for state, count in summary.ledger.items() if count)
    table.add_row("conditions", booked)
    table.add_row(f"segment {summary.segment}", _segment(summary))
    if summary.smoke:
        table.add_row("smoke", "stage C ran without its gate: this run proves nothing but that it runs")
    if summary.heldout:
        (first, before), (last, after) = summary.heldout[0], summary.heldout[-1]
        table.add_row("held-out", f"{before:.1f} after {first} batches -> {after:.1f} after {last}")
    table.add_row("alarms", f"{summary.alarms}{', first on the page of `sprl report`' if summary.alarms else ''}")
    table.add_row("policy", Text(str(summary.policy_file), overflow="fold"))
    Console(highlight=False).print(table)
