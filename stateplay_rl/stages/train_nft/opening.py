"""Everything that a training run needs, opened in the order in which it can be refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.judges.base import Judge
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.train_nft import state
from stateplay_rl.stages.train_nft.average import EvaluationAverage
from stateplay_rl.stages.train_nft.batches import BatchSource, OnPolicyBatches
from stateplay_rl.stages.train_nft.booking import Booking
from stateplay_rl.stages.train_nft.data import BatchData
from stateplay_rl.stages.train_nft.hand_made import HandMadeBatch
from stateplay_rl.stages.train_nft.heldout_curve import HeldoutCurve
from stateplay_rl.stages.train_nft.heldout_referee import HeldoutViewers
from stateplay_rl.stages.train_nft.in_flight import InFlight, Judges
from stateplay_rl.stages.train_nft.inputs import TrainInputs
from stateplay_rl.stages.train_nft.loop import Trainer
from stateplay_rl.stages.train_nft.naming import run_name
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stages.train_nft.permissions import Gate
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stages.train_nft.spending import Spending
from stateplay_rl.stages.train_nft.trackers import Tracker, make_tracker
from stateplay_rl.stages.train_nft.update import Updater
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.segments import open_segment
from stateplay_rl.worlds.base import ParameterGroup, World
from stateplay_rl.worlds.encoded import EncodedStore
from stateplay_rl.worlds.world_files import all_files


@dataclass(frozen=True)
class Command:
    """What was asked for, and what may be done.

    Args:
        plan: the segment that is trained.
        gate: of stage C's student; None elsewhere, and in a smoke run.
    """

    config: TrainNftConfig
    inputs: TrainInputs
    out: Path
    plan: SegmentPlan
    gate: Gate | None = None


@dataclass(frozen=True)
class Parts:
    """What is opened before the run is. `batch`: the hand-made one, if it is one."""

    conditions: ConditionStore
    judges: Judges
    heldout_judge: Judge
    viewers: HeldoutViewers
    batch: HandMadeBatch | None
    world: World
    parameter_groups: tuple[ParameterGroup, ...]


@contextmanager
def open_run(command: Command, world: WorldConfig, processes: Processes) -> Iterator[OutputDirectory | None]:
    """The run directory under its lock on rank 0, None elsewhere.

    Raises:
        OutputError, UsageError, InputError: as `OutputDirectory.open`.
    """
    inputs, plan = command.inputs, command.plan
    output = on_main(
        processes,
        lambda: OutputDirectory.open(
            command.out,
            schema="run",
            version=layout.SCHEMAS["run"],
            command="train-nft",
            config=command.config,
            inputs=inputs.named(command.config),
            # --extend and --stage c say themselves that a finished run goes on.
            resume=inputs.resume or (plan.begins and not inputs.hand_made),
            overwrite=inputs.overwrite,
            protected=all_files(world.files),
            extend=plan.begins,
        ),
    )
    try:
        yield output
    finally:
        if output is not None:
            output.close()


def build_trainer(
    command: Command,
    parts: Parts,
    output: OutputDirectory | None,
    processes: Processes,
    opened: ExitStack,
) -> tuple[Trainer, OutputDirectory | None]:
    """Policies, optimizer, ledger and the open segment, as the last checkpoint left them.

    Args:
        output: the run, on rank 0.
        opened: closes what is opened here.

    Returns:
        The trainer, and the open segment on rank 0.
    """
    config, out, world = command.config, command.out, parts.world
    ledger = on_main(processes, lambda: _open_ledger(out, parts.conditions))
    if ledger is not None:
        opened.callback(ledger.close)
    segment = on_main(processes, lambda: _open_segment(output, command))
    if segment is not None:
        opened.callback(segment.close)
    folder = Path(processes.broadcast(str(segment.path) if segment else None))
    groups = GroupStore(folder / layout.GROUPS_FOLDER, hasher=segment.hasher if segment else None)
    in_flight = InFlight(folder)
    data = BatchData(world, parts.conditions, groups, EncodedStore(config.encoded or out / "encoded", world), in_flight)
    objective = Objective(world, config, data.conditions_of, data.latents_of, data.real_of, data.has_clip)
    updater = Updater(objective, parts.parameter_groups, config, processes)
    decay = config.evaluation_average.decay
    average = EvaluationAverage(world, decay) if decay else None
    checkpoints = CheckpointStore(out / layout.CHECKPOINTS_FOLDER, keep=config.keep_checkpoints)
    position = _restore(checkpoints, world, updater, average, out, ledger, processes)
    tracker = make_tracker(config.tracker, out, processes, run_name(config, command.plan))
    trainer = Trainer(
        config=config,
        run=out,
        segment=folder,
        plan=command.plan,
        world=world,
        judges=parts.judges,
        source=_source(command, parts, data, processes, groups, in_flight),
        curve=_curve(command, parts, processes, position, tracker, average),
        data=data,
        updater=updater,
        checkpoints=checkpoints,
        processes=processes,
        booking=None if ledger is None else Booking(ledger, folder, in_flight),
        position=position,
        spending=None if ledger is None else Spending(out, (*parts.judges.all(), parts.heldout_judge)),
        tracker=tracker,
        average=average,
        gate=command.gate,
    )
    return trainer, segment


def _curve(
    command: Command,
    parts: Parts,
    processes: Processes,
    position: state.Position,
    tracker: Tracker,
    average: EvaluationAverage | None,
) -> HeldoutCurve:
    return HeldoutCurve(
        config=command.config,
        plan=command.plan,
        run=command.out,
        world=parts.world,
        conditions=parts.conditions,
        judges=Judges(parts.heldout_judge, referee=parts.judges.referee),
        viewers=parts.viewers,
        processes=processes,
        position=position,
        tracker=tracker,
        average=average,
    )


def _source(
    command: Command,
    parts: Parts,
    data: BatchData,
    processes: Processes,
    groups: GroupStore,
    in_flight: InFlight,
) -> BatchSource:
    if parts.batch is not None:
        data.read_from(parts.batch.read)
        return parts.batch
    return OnPolicyBatches(
        command.plan,
        parts.world,
        parts.conditions,
        parts.judges,
        command.config,
        processes,
        groups,
        in_flight,
        data.warm if command.config.uses_clips else lambda condition_id: None,
    )


def _open_ledger(out: Path, conditions: ConditionStore) -> Ledger:
    path = out / layout.LEDGER
    if path.exists():
        return Ledger.open(path)
    return Ledger.create(path, [record.condition_id for record in conditions.select("pass")])


def _open_segment(output: OutputDirectory | None, command: Command) -> OutputDirectory:
    assert output is not None, "rank 0 holds the run"
    return open_segment(
        output,
        command.plan.kind,
        extension=command.plan.extension,
        config=command.config,
        inputs=command.inputs.named_of_segment(command.config),
        last_is_sealed=command.plan.sealed,
    )


def _restore(
    checkpoints: CheckpointStore,
    world: World,
    updater: Updater,
    average: EvaluationAverage | None,
    out: Path,
    ledger: Ledger | None,
    processes: Processes,
) -> state.Position:
    """The position of the latest checkpoint; logs and ledger are cut back to it."""
    # A box around the step: None means no checkpoint, 0 is the one before the first batch.
    (latest,) = processes.broadcast(on_main(processes, lambda: (checkpoints.latest(),)))
    if latest is None:
        if ledger is not None:
            ledger.rewind_to(0)
            for name in state.LOGS:
                LineLog(out / name).truncate_to(0)
        return state.Position()
    checkpoint = checkpoints.load(latest)
    position = state.unpack(checkpoint, world, updater, average)
    if ledger is not None:
        state.cut_logs(checkpoint, out)
        ledger.rewind_to(position.batches_done)
    return position
