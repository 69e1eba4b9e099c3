"""`sprl train-rm`: parse, call the stage, print what came out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stateplay_rl.cli.options import (
    ConfigOption,
    DeviceOption,
    OutOption,
    OverwriteOption,
    QuietOption,
    ResumeOption,
    SeedOption,
    SetOption,
    ThreadsOption,
    resolve_config,
)
from stateplay_rl.config.train_rm import TrainRmConfig
from stateplay_rl.errors import EXIT_CHECK, EXIT_OK

if TYPE_CHECKING:
    from stateplay_rl.stages.train_rm.run import TrainRmSummary


def command(
    groups: Annotated[Path, typer.Argument(help="groups/ of `sprl rollout`, or a run/ (its finished groups).")],
    out: OutOption,
    scores: Annotated[
        Path | None, typer.Option(help="scores/ of these groups; left out: the run's own scores.")
    ] = None,
    conditions: Annotated[
        Path | None, typer.Option(help="conditions/ of these groups; left out: those that the groups record.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="`arena`, or the folder of a Qwen3.5 checkpoint (with its vision tower).")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option(help="requests/ of the judge; left out: below RL_RUN_ROOT, or beside the scores.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 4 when the student does not pass its gate.")
    ] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    seed: SeedOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> int:
    """Train the student judge: a LoRA that answers as the judge did, its evaluation and its gate.

    Several processes: accelerate launch -m stateplay_rl train-rm ... (GPUs), or
    ACCELERATE_USE_CPU=true python -m torch.distributed.run --nproc_per_node 2 -m stateplay_rl train-rm ...
    """
    flags = {
        "model": model,
        "requests": None if requests is None else str(requests),
        "compute.device": device,
        "compute.threads": threads,
        "seed": seed,
    }
    resolved = resolve_config(TrainRmConfig, config, settings, flags)
    from stateplay_rl.stages.train_rm import run as stage

    summary = stage.run(resolved, stage.TrainRmInputs(groups, scores, conditions, resume, overwrite), out)
    _show(summary)
    return EXIT_CHECK if strict and not summary.gate["passed"] else EXIT_OK


def _show(summary: TrainRmSummary) -> None:
    from stateplay_rl.runtime import ranks

    if not ranks().is_main:
        return
    table = Table("", "", show_header=False, box=None, padding=(0, 2, 0, 0))
    done = "was already finished" if summary.already_done else "finished"
    table.add_row("output", Text(f"{summary.out} {done}", overflow="fold"))
    evaluation, gate = summary.evaluation, summary.gate
    counts = gate["data"]["groups"]
    table.add_row("groups", f"{counts['train']} train, {counts['validation']} validation, {counts['test']} test")
    table.add_row("reading", Text(f"{gate['reading']}, epoch {evaluation['best_epoch']}"))
    table.add_row("agreement", _measured(evaluation["student"]))
    for name, measured in evaluation["baselines"].items():
        table.add_row("", Text(f"{name}: ").append(_measured(measured)))
    table.add_row("error", Text(f"{_number(evaluation['student']['mae_points'])} (mean, absolute, points)"))
    table.add_row("gate", Text("passed" if gate["passed"] else "not passed", style="bold"))
    for check in gate["checks"]:
        mark = "ok" if check["passed"] else "failed"
        rule = f"{check['name']}: {_number(check['value'])}, {check['rule']} {_number(check['threshold'])}"
        table.add_row("", Text(f"{mark}: {rule}"))
    table.add_row("next", Text(gate["advice"], overflow="fold"))
    Console(highlight=False).print(table)


def _measured(measured: dict[str, Any]) -> Text:
    """Agreement with its interval."""
    interval = measured.get("pairwise_agreement_interval")
    ends = "" if interval is None else f" [{interval[0]:.3f}, {interval[1]:.3f}]"
    return Text(f"{_number(measured['pairwise_agreement'])}{ends}")


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"
