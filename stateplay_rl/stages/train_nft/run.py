"""`sprl train-nft`: open everything, train, seal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.checks.audit.trainable import refuse_changed_files, require_trainable_audit
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.distributed import Processes, start_processes
from stateplay_rl.errors import InputError, UsageError
from stateplay_rl.judges.base import Judge
from stateplay_rl.runtime import pin_threads
from stateplay_rl.stages.candidates import policy_sha256
from stateplay_rl.stages.judge_choice import make_judge
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.train_nft import heldout, state
from stateplay_rl.stages.train_nft.batches import BatchSource, HandMadeBatch, OnPolicyBatches
from stateplay_rl.stages.train_nft.data import BatchData
from stateplay_rl.stages.train_nft.heldout_referee import HeldoutJudges
from stateplay_rl.stages.train_nft.loop import Trainer
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stages.train_nft.trackers import make_tracker
from stateplay_rl.stages.train_nft.update import Updater
from stateplay_rl.stages.verdicts import write_score_table
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import OutputDirectory, is_sealed, read_manifest
from stateplay_rl.stores.segments import list_segments, open_segment
from stateplay_rl.worlds.base import ParameterGroup, PolicyName, World
from stateplay_rl.worlds.encoded import EncodedStore
from stateplay_rl.worlds.load import load_world
from stateplay_rl.worlds.native.weights import write_safetensors
from stateplay_rl.worlds.world_files import all_files, resolve_world

HAND_MADE = "hand"
"""Segment kind of a batch that was made with `rollout` and `score`."""


@dataclass(frozen=True)
class TrainInputs:
    """What `train-nft` reads. `groups` and `scores` come together: one hand-made batch."""

    conditions: Path
    groups: Path | None = None
    scores: Path | None = None
    resume: bool = False
    overwrite: bool = False

    @property
    def hand_made(self) -> bool:
        return self.groups is not None

    def named(self, config: TrainNftConfig) -> dict[str, Path]:
        """Input directories by name, for the manifest."""
        named = {"conditions": self.conditions, "audit": config.audit}
        return {name: path for name, path in named.items() if path is not None}


@dataclass(frozen=True)
class TrainSummary:
    """What came out; rewards are (batches done, points)."""

    out: Path
    batches: int
    optimizer_steps: int
    candidates_seen: int
    ledger: dict[str, int]
    heldout: tuple[tuple[int, float], ...]
    alarms: int
    policy_file: Path
    already_done: bool = False


def run(config: TrainNftConfig, inputs: TrainInputs, out: Path) -> TrainSummary:
    """Train, or go on with a killed run, and seal `run/`.

    Args:
        config: settings; equal on every rank.
        inputs: what is read.
        out: the run directory.

    Raises:
        UsageError: settings that exclude each other, or a resume with other settings.
        CheckError: the world has no passed audit.
        InputError: inputs that are missing or do not fit each other.
        OutsideError: a pause on an alarm, bad steps in a row, disk full: resume later.
    """
    if (inputs.groups is None) != (inputs.scores is None):
        raise UsageError("--groups and --scores belong together", "give both, or neither")
    if config.threads is not None:
        pin_threads(config.threads)
    processes = start_processes()
    world_config = resolve_world(config.world)
    if config.audit is None and world_config.audit is not None:
        config = config.model_copy(update={"audit": world_config.audit})
    audit = on_main(processes, lambda: require_trainable_audit(config.audit, world_config, config.world))
    conditions = ConditionStore.open(inputs.conditions)
    _check_conditions(conditions, config, inputs)
    # Before the run is opened: what is refused leaves it as it was.
    batch = _hand_made_batch(config, inputs, out, conditions, processes)
    if batch is not None and batch.is_trained and inputs.resume and is_sealed(out):
        return _summary(out, already_done=True)
    judge = _judge(config, batch)
    heldout_judges = HeldoutJudges.of(config.heldout, conditions)
    loaded = None if batch is None else _load_and_check(config, world_config, batch, inputs, out)
    processes.barrier()
    with _open_run(config, inputs, out, world_config, processes) as output, ExitStack() as opened:
        if processes.broadcast(output.already_sealed if output else None):
            return _summary(out, already_done=True)
        parts = _Parts(conditions, judge, heldout_judges, batch, *(loaded or _load(config, world_config)))
        trainer, segment = _build(config, inputs, out, parts, output, processes, opened)
        try:
            trainer.train()
        finally:
            # Before the seal: a tracker may write its last lines now.
            trainer.tracker.finish()
        processes.barrier()
        on_main(processes, lambda: refuse_changed_files(audit or {}))
        on_main(processes, lambda: _finish(trainer, segment, output))
    processes.barrier()
    return _summary(out)


def _check_conditions(conditions: ConditionStore, config: TrainNftConfig, inputs: TrainInputs) -> None:
    available = len(conditions.select("pass"))
    if not inputs.hand_made and available < config.stage_conditions:
        raise InputError(
            f"{inputs.conditions} has {available} conditions of pool 'pass', stage {config.stage.upper()} wants "
            f"{config.stage_conditions}",
            f"build more conditions, or --set stage_conditions={available}",
        )
    if config.heldout.conditions:
        heldout.choose_heldout(conditions, config.heldout.conditions)


@contextmanager
def _open_run(
    config: TrainNftConfig, inputs: TrainInputs, out: Path, world: WorldConfig, processes: Processes
) -> Iterator[OutputDirectory | None]:
    """The run directory under its lock on rank 0, None elsewhere."""
    output = on_main(
        processes,
        lambda: OutputDirectory.open(
            out,
            schema="run",
            version=layout.SCHEMAS["run"],
            command="train-nft",
            config=config,
            inputs=inputs.named(config),
            resume=inputs.resume,
            overwrite=inputs.overwrite,
            protected=all_files(world.files),
            extend=inputs.hand_made,
        ),
    )
    try:
        yield output
    finally:
        if output is not None:
            output.close()


@dataclass(frozen=True)
class _Parts:
    """What is opened before the run is."""

    conditions: ConditionStore
    judge: Judge
    heldout_judges: HeldoutJudges
    batch: HandMadeBatch | None
    world: World
    parameter_groups: tuple[ParameterGroup, ...]


def _hand_made_batch(
    config: TrainNftConfig, inputs: TrainInputs, out: Path, conditions: ConditionStore, processes: Processes
) -> HandMadeBatch | None:
    if inputs.groups is None or inputs.scores is None:
        return None
    return HandMadeBatch(config, processes, inputs.groups, inputs.scores, out, conditions, fresh=inputs.overwrite)


def _judge(config: TrainNftConfig, batch: HandMadeBatch | None) -> Judge:
    """A hand-made batch brings its scores: only held-out conditions then need a judge."""
    if batch is not None and config.heldout.conditions == 0:
        return batch.judge
    return make_judge(config.judge, world=config.world)


def _load(config: TrainNftConfig, world_config: WorldConfig) -> tuple[World, tuple[ParameterGroup, ...]]:
    world = load_world(world_config)
    return world, world.set_mode(config.mode)


def _load_and_check(
    config: TrainNftConfig, world_config: WorldConfig, batch: HandMadeBatch, inputs: TrainInputs, out: Path
) -> tuple[World, tuple[ParameterGroup, ...]]:
    """The world under the run's old policy, and whether the hand-made batch fits it."""
    world, parameter_groups = _load(config, world_config)
    checkpoints = CheckpointStore(out / layout.CHECKPOINTS_FOLDER)
    if not inputs.overwrite and checkpoints.latest() is not None:
        world.policies.load("old", dict(checkpoints.load().payload.old))
    batch.check(world)
    return world, parameter_groups


def _build(
    config: TrainNftConfig,
    inputs: TrainInputs,
    out: Path,
    parts: _Parts,
    output: OutputDirectory | None,
    processes: Processes,
    opened: ExitStack,
) -> tuple[Trainer, OutputDirectory | None]:
    """Policies, optimizer, ledger and the open segment, as the last checkpoint left them."""
    world, conditions, judge = parts.world, parts.conditions, parts.judge
    encoded = EncodedStore(config.encoded or out / "encoded", world)
    checkpoints = CheckpointStore(out / layout.CHECKPOINTS_FOLDER, keep=config.keep_checkpoints)
    ledger = on_main(processes, lambda: _open_ledger(out, conditions))
    if ledger is not None:
        opened.callback(ledger.close)
    segment = on_main(processes, lambda: _open_segment(output, config, inputs, parts.batch))
    if segment is not None:
        opened.callback(segment.close)
    folder = Path(processes.broadcast(str(segment.path) if segment else None))
    groups = GroupStore(folder / layout.GROUPS_FOLDER, hasher=segment.hasher if segment else None)
    data = BatchData(world, conditions, groups, encoded)
    objective = Objective(world, config, data.conditions_of, data.latents_of, data.real_of, data.has_clip)
    updater = Updater(objective, parts.parameter_groups, config, processes)
    position = _restore(checkpoints, world, updater, out, ledger, processes)
    source: BatchSource
    if parts.batch is None:
        source = OnPolicyBatches(world, conditions, judge, config, processes, groups)
    else:
        source = parts.batch
        data.read_from(parts.batch.read)
    trainer = Trainer(
        config=config,
        run=out,
        segment=folder,
        world=world,
        conditions=conditions,
        judge=judge,
        source=source,
        data=data,
        updater=updater,
        checkpoints=checkpoints,
        processes=processes,
        ledger=ledger,
        position=position,
        tracker=make_tracker(config.tracker, out, processes),
        heldout_judges=parts.heldout_judges,
    )
    return trainer, segment


def _open_ledger(out: Path, conditions: ConditionStore) -> Ledger:
    path = out / layout.LEDGER
    if path.exists():
        return Ledger.open(path)
    return Ledger.create(path, [record.condition_id for record in conditions.select("pass")])


def _open_segment(
    output: OutputDirectory | None, config: TrainNftConfig, inputs: TrainInputs, batch: HandMadeBatch | None
) -> OutputDirectory:
    """The open segment; the last one again when a kill came between its seal and the run's."""
    assert output is not None, "rank 0 holds the run"
    kind = HAND_MADE if inputs.hand_made else config.stage
    segments = list_segments(output.path)
    named = inputs.named(config)
    for name, path in (("groups", inputs.groups), ("scores", inputs.scores)):
        if path is not None:
            named[name] = path
    if segments and segments[-1].sealed and (batch is None or batch.is_trained):
        return OutputDirectory.open(
            segments[-1].path,
            schema="segment",
            version=layout.SCHEMAS["segment"],
            command="train-nft",
            config=config,
            inputs=named,
            resume=True,
            overwrite=False,
        )
    return open_segment(output, kind, config=config, inputs=named)


def _restore(
    checkpoints: CheckpointStore,
    world: World,
    updater: Updater,
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
    position = state.unpack(checkpoint, world, updater)
    if ledger is not None:
        state.cut_logs(checkpoint, out)
        ledger.rewind_to(position.batches_done)
    return position


def _finish(trainer: Trainer, segment: OutputDirectory | None, output: OutputDirectory | None) -> None:
    """Seal the segment, export the policies, seal the run."""
    assert segment is not None, "rank 0 seals"
    assert output is not None, "rank 0 seals"
    assert trainer.ledger is not None, "rank 0 seals"
    if not segment.already_sealed:
        lines = LineLog(segment.path / layout.VERDICTS).read()
        table = segment.path / layout.SCORES
        segment.hasher.record(table, write_score_table(table, lines))
        segment.seal(extra={"world": trainer.config.world}, seeds={"run": trainer.config.seed})
    exported: dict[str, str] = {}
    policies: tuple[PolicyName, ...] = ("live", "old")
    for policy in policies:
        exported[policy] = policy_sha256(trainer.world, policy)
        path = output.file(layout.policy_file(exported[policy]))
        # Nothing of this run's own goes in: the same weights are the same file.
        write_safetensors(path, trainer.world.export_policy(policy), {"policy_sha256": exported[policy]})
    counts = trainer.ledger.counts()
    trainer.ledger.close()
    output.seal(
        extra={
            "world": trainer.config.world,
            "world_sha256": trainer.world.sha256,
            "world_facts": dict(trainer.world.facts),
            "policies": exported,
            "batches": trainer.position.batches_done,
            "optimizer_steps": trainer.updater.optimizer_steps,
            "candidates_seen": trainer.position.candidates_seen,
            "ledger": dict(counts),
            "parameters": {group.name: group.count for group in trainer.updater.groups},
        },
        seeds={"run": trainer.config.seed, "heldout": trainer.config.heldout.seed},
    )


def _summary(out: Path, *, already_done: bool = False) -> TrainSummary:
    extra = read_manifest(out, schema="run").extra
    rewards = tuple((line["batch"], line["reward_mean"]) for line in LineLog(out / layout.HELDOUT).read())
    return TrainSummary(
        out=out,
        batches=extra["batches"],
        optimizer_steps=extra["optimizer_steps"],
        candidates_seen=extra["candidates_seen"],
        ledger=extra["ledger"],
        heldout=rewards,
        alarms=len(LineLog(out / layout.ALARMS).read()),
        policy_file=out / layout.policy_file(extra["policies"]["live"]),
        already_done=already_done,
    )
