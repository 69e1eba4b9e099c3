"""`--dry-run`: what would run, without loading a model or writing a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import SprlError
from stateplay_rl.runtime import ranks
from stateplay_rl.stages.group_source import open_groups
from stateplay_rl.stages.train_nft import estimates, heldout, permissions
from stateplay_rl.stages.train_nft.estimates import Evaluations
from stateplay_rl.stages.train_nft.eta import SECONDS_PER_HOUR, in_words
from stateplay_rl.stages.train_nft.inputs import HAND_MADE, TrainInputs
from stateplay_rl.stages.train_nft.load import Load, work_out
from stateplay_rl.stages.train_nft.naming import planned_steps, run_name
from stateplay_rl.stages.train_nft.paid_requests import cost_bound
from stateplay_rl.stages.train_nft.segments import SegmentPlan, plan_segment
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.worlds.world_files import resolve_world

Row = tuple[str, str]


def make_plan(config: TrainNftConfig, inputs: TrainInputs, out: Path) -> list[Row]:
    """Rows of (name, value): segment, batches, steps, requests, cost bound, disk, memory, days.

    Raises:
        InputError: conditions, groups or world are missing, or too few conditions.
        UsageError: options that exclude each other.
    """
    inputs.check(config)
    store = ConditionStore.open(inputs.conditions)
    world = resolve_world(config.world)
    if config.heldout.conditions:
        heldout.choose_heldout(store, config.heldout.conditions)
    permit, smoke = _permissions(config)
    plan = _segment(config, inputs, out, store, smoke=smoke)
    load = work_out(config, world, store.select("pass"), plan, out)
    rows = [
        ("world", f"{world.name}, mode {config.mode}, compute {world.compute_dtype}"),
        ("name", run_name(config, plan)),
        ("segment", _segment_words(plan, len(store.select("pass")))),
        *_done_row(out, plan, inputs),
        ("batches", _batches(config, plan)),
    ]
    if plan.kind != HAND_MADE:
        candidates = plan.conditions * config.sampling.candidates
        sampler = f"{config.sampling.steps} {config.sampling.sampler} steps each"
        rows.append(("sampling", f"{candidates} candidates, {sampler}"))
    steps = planned_steps(config, plan.sizes())
    return [
        *rows,
        ("optimizer steps", f"at most {steps} of {config.optimizer.samples_per_step} samples"),
        *_judge_rows(config, plan, load),
        *_machine_rows(config, world, load),
        _time_row(config, world, plan, load.evaluations),
        *permit,
    ]


def _segment(
    config: TrainNftConfig, inputs: TrainInputs, out: Path, store: ConditionStore, *, smoke: bool
) -> SegmentPlan:
    if inputs.groups is None:
        return plan_segment(config, inputs, out, len(store.select("pass")), smoke=smoke)
    groups = len(open_groups(inputs.groups).roots)
    return SegmentPlan(HAND_MADE, 0, 0, groups, max(groups, 1))


def _segment_words(plan: SegmentPlan, total: int) -> str:
    names = {"a": "stage A", "c": "stage C", HAND_MADE: "one hand-made batch"}
    extended = f", extended by {plan.extension}" if plan.extension else ""
    smoke = ", smoke (no gate)" if plan.smoke else ""
    begins = f", from batch {plan.first_batch}" if plan.first_batch else ""
    return f"{names[plan.kind]}{extended}{smoke}: {plan.conditions} of {total} conditions of the pass{begins}"


def _batches(config: TrainNftConfig, plan: SegmentPlan) -> str:
    sizes = plan.sizes()
    last = f", the last of {sizes[-1]}" if sizes and sizes[-1] != plan.per_batch else ""
    return f"{plan.batches} of {plan.per_batch} conditions, {config.sampling.candidates} candidates{last}"


def _judge_rows(config: TrainNftConfig, plan: SegmentPlan, load: Load) -> list[Row]:
    rows: list[Row] = []
    if plan.kind == HAND_MADE:
        rows.append(("judge", f"{plan.conditions} groups, judged already"))
    else:
        rows.append(("judge", f"{config.judge.name}: {plan.conditions} groups, one request each"))
    if load.audited:
        name = config.audits.judge.name if config.audits.judge is not None else ""
        rows.append(("audits", f"{name}: about {load.audited} groups"))
    if config.heldout.conditions:
        rows.append(("held-out", _heldout(config, load.evaluations)))
    return [*rows, ("cost bound", cost_bound(load.paid))]


def _heldout(config: TrainNftConfig, evaluations: Evaluations) -> str:
    if not evaluations.all:
        return "off: the judge is an API and heldout_requests is too small"
    words = f"{evaluations.all} evaluations of {config.heldout.conditions} x {config.heldout.samples}"
    if not config.uses_api:
        return words
    others = evaluations.all - evaluations.paid
    return f"{words}, {evaluations.paid} within heldout_requests {config.heldout_requests}" + (
        f", {others} by the referee" if others else ""
    )


def _machine_rows(config: TrainNftConfig, world: WorldConfig, load: Load) -> list[Row]:
    gpus, sizes = config.plan.gpus or ranks().world_size, load.sizes
    memory = estimates.memory_gib(config, world, sizes, load.shape.frames, gpus)
    peak = estimates.peak_gib(memory, student_waits=config.judge.student_waits_on_host)
    bytes_of = {name: need.bytes for name, need in load.disk.items()}
    return [
        ("trained", f"{sizes.trained:,} of {sizes.parameters:,} parameters"),
        ("disk", f"about {_size(sum(bytes_of.values()))}: {_parts(bytes_of, _size)}"),
        ("memory", f"about {peak:.1f} GiB a device: {_parts(memory, '{:.2f}'.format)}"),
    ]


def _time_row(config: TrainNftConfig, world: WorldConfig, plan: SegmentPlan, evaluations: Evaluations) -> Row:
    gpus = config.plan.gpus or ranks().world_size
    seconds = estimates.days(config, world, plan, evaluations.all, gpus) * estimates.SECONDS_PER_DAY
    kind = "CPU process" + ("es" if gpus > 1 else "") if world.preset == "arena" else config.plan.gpu.upper()
    time = f"{seconds / SECONDS_PER_HOUR / 24:.1f} days" if seconds > SECONDS_PER_HOUR else in_words(seconds)
    student = estimates.judged_by_big_student(config)
    judging = "the student's time is in it" if student else "judging not counted (it overlaps)"
    return "time", f"about {time} on {gpus} {kind}, {judging}"


def _parts(values: Mapping[str, float], shown: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in values.items() if value)


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.1f} MiB"


def _done_row(out: Path, plan: SegmentPlan, inputs: TrainInputs) -> list[Row]:
    """How far a run that is gone on with has come; the other rows are of the whole segment."""
    if plan.done is not None:
        return [("done", "this segment is finished: nothing would run")]
    step = CheckpointStore(out / layout.CHECKPOINTS_FOLDER).latest() if inputs.resume else None
    if plan.begins or step is None:
        return []
    return [("done", f"{step - plan.first_batch} of {plan.batches} batches; the other rows are of the whole segment")]


def _permissions(config: TrainNftConfig) -> tuple[list[Row], bool]:
    """What would refuse the start, as rows; and whether stage C would be a smoke run."""
    rows: list[Row] = []
    smoke = False
    if config.run_mode == "production":
        try:
            permissions.require_preflight(config)
            rows.append(("preflight", "passed, of this very config"))
        except SprlError as error:
            rows.append(("preflight", f"would refuse: {error.what}"))
    if config.stage == "c":
        try:
            smoke = permissions.would_be_smoke(config)
            rows.append(("gate", "forced: smoke, at most 10 batches" if smoke else "passed"))
        except SprlError as error:
            rows.append(("gate", f"would refuse: {error.what}"))
    return rows, smoke
