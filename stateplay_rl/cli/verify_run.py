"""`sprl verify resume` and `sprl verify preflight`: drills and checklists for one training config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stateplay_rl.cli.options import OverwriteOption, SetOption, resolve_config
from stateplay_rl.cli.verify import VerifyOutOption, finish
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.verify import PreflightConfig, ResumeConfig
from stateplay_rl.errors import InputError

ConfigArgument = Annotated[Path, typer.Argument(help="YAML file of sprl train-nft, or a run's config.yaml.")]
JudgeOption = Annotated[str | None, typer.Option(help="Judge of the run, as in train-nft.")]
AuditOption = Annotated[Path | None, typer.Option(help="Passed audit of the world, as in train-nft.")]


def resume(
    config: ConfigArgument,
    conditions: Annotated[Path, typer.Option(help="conditions/ of sprl build-conditions.")],
    settings: SetOption = None,
    audit: AuditOption = None,
    judge: JudgeOption = None,
    kills: Annotated[int, typer.Option(min=1, help="SIGKILLs that must hit a living run.")] = 3,
    batches: Annotated[int, typer.Option(min=1, help="Batches of the short run.")] = 2,
    processes: Annotated[int, typer.Option(min=1, help="Ranks of every start.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the moments of the kills.")] = 7,
    out: VerifyOutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Kill drill: a short run of this very config, shot at random and resumed, must end as if undisturbed."""
    train = _train(config, settings, audit, judge)
    _require_folder(conditions)
    from stateplay_rl.stages import verify_resume

    drill = ResumeConfig(
        train=train, conditions=conditions, kills=kills, batches=batches, processes=processes, seed=seed
    )
    finish(verify_resume.run(drill, out, overwrite=overwrite))


def preflight(
    config: ConfigArgument,
    conditions: Annotated[Path | None, typer.Option(help="conditions/ of sprl build-conditions.")] = None,
    settings: SetOption = None,
    audit: AuditOption = None,
    judge: JudgeOption = None,
    run: Annotated[Path | None, typer.Option(help="Where the run will lie: its disk is measured.")] = None,
    resume_record: Annotated[
        Path | None, typer.Option("--resume-record", help="verify-<utc>/ of a passed sprl verify resume.")
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="Conditions that are checked and rolled out.")] = 4,
    out: VerifyOutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Checklist before a long run: audit, data, gradients, baseline, one request to the judge, disk, memory."""
    train = _train(config, settings, audit, judge)
    from stateplay_rl.stages import verify_preflight

    flight = PreflightConfig(train=train, conditions=conditions, run=run, resume_record=resume_record, sample=sample)
    finish(verify_preflight.run(flight, out, overwrite=overwrite))


def _train(config: Path, settings: list[str] | None, audit: Path | None, judge: str | None) -> TrainNftConfig:
    flags = {"audit": None if audit is None else str(audit), "judge.name": judge}
    return resolve_config(TrainNftConfig, config, settings, flags)


def _require_folder(conditions: Path) -> None:
    if not conditions.is_dir():
        raise InputError(f"{conditions} is not a directory", "give conditions/ of sprl build-conditions")
