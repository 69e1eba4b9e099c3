"""`sprl verify preflight`: everything that can be known before a long run, as a checklist with what to do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from stateplay_rl.checks.lines import CheckLine, run_check
from stateplay_rl.config.verify import PreflightConfig
from stateplay_rl.stages.preflight import paper, trial
from stateplay_rl.stages.preflight.flight import Flight
from stateplay_rl.stages.train_nft.permissions import preflight_config
from stateplay_rl.stages.verify import VerifySummary, default_out, seal_record
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.worlds.load import world_spec
from stateplay_rl.worlds.world_files import all_files, resolve_world

Check = Callable[[Flight], str]


def run(config: PreflightConfig, out: Path | None = None, *, overwrite: bool = False) -> VerifySummary:
    """Go through the checklist and write the record that production mode asks for.

    Args:
        config: the very config of the long run, and where its inputs lie.
        out: directory to write; None for `verify-<utc>`.
        overwrite: empty `out` first.

    Returns:
        A line an item, each with what to do. An item that fails is a line, not an exception.

    Raises:
        InputError, UsageError: the world cannot be described.
        OutputError: the output directory is not usable; nothing was checked.
    """
    world_config = resolve_world(config.train.world)
    train = config.train
    if train.audit is None and world_config.audit is not None:
        train = train.model_copy(update={"audit": world_config.audit})  # as train-nft does before it compares
    inputs = {"conditions": config.conditions, "audit": train.audit, "resume_record": config.resume_record}
    with OutputDirectory.open(
        default_out() if out is None else out,
        schema="verify",
        version=layout.SCHEMAS["verify"],
        command="verify preflight",
        config=config,
        inputs={name: path for name, path in inputs.items() if path is not None and path.is_dir()},
        resume=False,
        overwrite=overwrite,
        protected=all_files(world_config.files),
    ) as directory:
        place = config.run or directory.path.with_name(f"{directory.path.name}-planned-run")
        with tempfile.TemporaryDirectory(prefix=".preflight-", dir=directory.path.parent) as work:
            flight = Flight(config, train, world_config, world_spec(world_config), place, Path(work))
            lines = tuple(run_check(name, partial(check, flight)) for name, check in CHECKS)
        summary = VerifySummary("preflight", directory.path, lines, _words(lines))
        extra = {"train_config_sha256": preflight_config(train)}
        seal_record(directory, summary, config.conditions, flight.measures, extra)
    return summary


CHECKS: tuple[tuple[str, Check], ...] = (
    ("audit", paper.check_audit),
    ("conditions", paper.check_conditions),
    ("frames and actions", paper.check_frames),
    ("plan", paper.check_plan),
    ("gradient map", trial.check_gradients),
    ("baseline rollouts", trial.check_rollouts),
    ("judge", trial.check_judge),
    ("gate and student", trial.check_gate),
    ("disk", paper.check_disk),
    ("memory", trial.check_memory),
    ("kill and resume", paper.check_resume),
)
"""In this order: what is cheap and what others need comes first."""


def _words(lines: tuple[CheckLine, ...]) -> tuple[str, ...]:
    counts = {status: sum(line.status == status for line in lines) for status in ("passed", "failed", "skipped")}
    text = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped."
    if counts["failed"]:
        return (text + " Mend what failed, then run it again: production mode asks for a passed record.",)
    return (text + " For production mode: --set preflight=DIR of this record.",)
