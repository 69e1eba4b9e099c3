"""`sprl train-nft`: check, open, train, seal."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from stateplay_rl.checks.audit.trainable import refuse_changed_files, require_trainable_audit
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.distributed import Processes, start_processes
from stateplay_rl.judges.base import Judge
from stateplay_rl.judges.remote import close_judge, remote_judges
from stateplay_rl.runtime import Progress, pin_threads
from stateplay_rl.stages.judge_choice import make_judge, make_referee
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.remote_judging import probe_warnings
from stateplay_rl.stages.train_nft import heldout, permissions
from stateplay_rl.stages.train_nft.hand_made import HandMadeBatch
from stateplay_rl.stages.train_nft.heldout_referee import HeldoutViewers
from stateplay_rl.stages.train_nft.in_flight import Judges
from stateplay_rl.stages.train_nft.inputs import TrainInputs, TrainSummary
from stateplay_rl.stages.train_nft.load import require_disk
from stateplay_rl.stages.train_nft.opening import Command, Parts, build_trainer, open_run
from stateplay_rl.stages.train_nft.sealing import finish, summarise
from stateplay_rl.stages.train_nft.segments import plan_segment
from stateplay_rl.stages.train_nft.sharding import shard_frozen
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.manifest import OutputDirectory, is_sealed
from stateplay_rl.worlds.base import ParameterGroup, World
from stateplay_rl.worlds.load import load_world
from stateplay_rl.worlds.world_files import resolve_world

TRUSTED_SIGNAL_TO_NOISE = 1.0

__all__ = ["TrainInputs", "TrainSummary", "run"]


def run(config: TrainNftConfig, inputs: TrainInputs, out: Path) -> TrainSummary:
    """Train a segment of a run, or go on with a killed one, and seal `run/`.

    Args:
        config: settings; equal on every rank.
        inputs: what is read.
        out: the run directory.

    Raises:
        UsageError: settings that exclude each other, or a resume with other settings.
        CheckError: the world has no passed audit, stage C no passed gate, production no passed preflight.
        InputError: inputs that are missing or do not fit each other.
        OutsideError: a pause on an alarm, bad steps in a row, disk full, a judge that stays down: resume later.
    """
    inputs.check(config)
    if config.threads is not None:
        pin_threads(config.threads)
    processes = start_processes(config.parallel.timeout_minutes, config.parallel.strategy)
    world_config = resolve_world(config.world)
    if config.audit is None and world_config.audit is not None:
        config = config.model_copy(update={"audit": world_config.audit})
    audit = on_main(processes, lambda: require_trainable_audit(config.audit, world_config, config.world))
    conditions = ConditionStore.open(inputs.conditions)
    if config.heldout.conditions:
        heldout.choose_heldout(conditions, config.heldout.conditions)
    # All of this before the run is opened: what is refused leaves it as it was.
    command, batch, judges = _command(config, inputs, out, conditions, processes)
    if command.plan.done is not None or (batch is not None and batch.is_trained and inputs.resume and is_sealed(out)):
        return summarise(out, command.plan.done, already_done=True)
    heldout_judge = _heldout_judge(config, batch, judges, out)
    for judge in (*judges.all(), heldout_judge):
        for remote in remote_judges(judge):
            remote.require_ready()
    viewers = HeldoutViewers.of(config.heldout, conditions, processes)
    loaded = None if batch is None else _load_and_check(command, world_config, batch, processes)
    on_main(processes, lambda: require_disk(command.config, world_config, conditions, command.plan, out))
    processes.barrier()
    with open_run(command, world_config, processes) as output, ExitStack() as opened:
        _show_notices(output)
        for judge in {id(judge): judge for judge in (*judges.all(), heldout_judge)}.values():
            opened.callback(close_judge, judge)
        _show_probes(judges, processes)
        world, trained = loaded or _load(config, world_config, processes)
        parts = Parts(conditions, judges, heldout_judge, viewers, batch, world, trained)
        trainer, segment = build_trainer(command, parts, output, processes, opened)
        try:
            trainer.train()
        finally:
            # Before the seal: a tracker may write its last lines now.
            trainer.tracker.finish()
        processes.barrier()
        on_main(processes, lambda: refuse_changed_files(audit or {}))
        on_main(processes, lambda: finish(trainer, segment, output))
    processes.barrier()
    return summarise(out)


def _command(
    config: TrainNftConfig, inputs: TrainInputs, out: Path, conditions: ConditionStore, processes: Processes
) -> tuple[Command, HandMadeBatch | None, Judges]:
    """Who judges, whether the stage may start, and which segment it is."""
    referee = make_referee(config.judge, world=config.world) if config.referee == "auto" else None
    batch: HandMadeBatch | None = None
    if inputs.groups is not None and inputs.scores is not None:
        batch = HandMadeBatch(
            config, processes, inputs.groups, inputs.scores, out, conditions, fresh=inputs.overwrite, referee=referee
        )
        training: Judge = batch.judge
    else:
        training = make_judge(config.judge, world=config.world, out=out)
    auditing = config.audits.judge if config.stage == "c" else None
    audit = None if auditing is None else make_judge(auditing, world=config.world, out=out)

    def permit() -> Command:
        permissions.require_preflight(config)
        permissions.require_known_groups(config, training)
        gate, smoke = permissions.require_gate(config, training)
        plan = plan_segment(config, inputs, out, len(conditions.select("pass")), smoke=smoke)
        if batch is not None:
            plan = replace(plan, conditions=len(batch.stored), per_batch=len(batch.stored))
        return Command(config, inputs, out, plan, gate)

    command = processes.broadcast(on_main(processes, permit))
    return command, batch, Judges(training, audit, referee)


def _heldout_judge(config: TrainNftConfig, batch: HandMadeBatch | None, judges: Judges, out: Path) -> Judge:
    """A hand-made batch brings its scores: only held-out conditions then need a judge."""
    if batch is None or config.heldout.conditions == 0:
        return judges.training
    return make_judge(config.judge, world=config.world, out=out)


def _load(
    config: TrainNftConfig, world_config: WorldConfig, processes: Processes
) -> tuple[World, tuple[ParameterGroup, ...]]:
    world = load_world(world_config)
    parameter_groups = world.set_mode(config.mode)
    shard_frozen(world, processes)
    return world, parameter_groups


def _load_and_check(
    command: Command, world_config: WorldConfig, batch: HandMadeBatch, processes: Processes
) -> tuple[World, tuple[ParameterGroup, ...]]:
    """The world under the run's old policy, and whether the hand-made batch fits it."""
    world, parameter_groups = _load(command.config, world_config, processes)
    checkpoints = CheckpointStore(command.out / layout.CHECKPOINTS_FOLDER)
    if not command.inputs.overwrite and checkpoints.latest() is not None:
        world.policies.load("old", dict(checkpoints.load().payload.old))
    batch.check(world)
    return world, parameter_groups


def _show_probes(judges: Judges, processes: Processes) -> None:
    """Paid judges that were never probed, or that are noisier than what they measure."""
    if not processes.is_main:
        return
    for judge in judges.all():
        for warning in probe_warnings(judge, TRUSTED_SIGNAL_TO_NOISE):
            Progress("train-nft").say(f"warning: {warning}")


def _show_notices(output: OutputDirectory | None) -> None:
    """Software that changed since the run was begun: shown, on rank 0, whoever resumes."""
    if output is None:
        return
    for notice in output.notices:
        Progress("train-nft").say(f"changed since this run was begun: {notice}")
