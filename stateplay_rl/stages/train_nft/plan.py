"""`--dry-run`: what would run, without loading a model or writing a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import SprlError
from stateplay_rl.runtime import ranks
from stateplay_rl.stages.group_source import open_groups
from stateplay_rl.stages.train_nft import estimates, heldout, permissions
from stateplay_rl.stages.train_nft.eta import SECONDS_PER_HOUR, in_words
from stateplay_rl.stages.train_nft.inputs import HAND_MADE, TrainInputs
from stateplay_rl.stages.train_nft.naming import planned_steps, run_name
from stateplay_rl.stages.train_nft.segments import SegmentPlan, plan_segment
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.worlds.world_files import resolve_world

ATTEMPTS_PER_GROUP = 2
"""An answer that cannot be read is asked for once more; both are paid."""
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
    evaluations = estimates.evaluations_of(config, plan)
    total = len(store.select("pass"))
    rows = [
        ("world", f"{world.name}, mode {config.mode}, compute {world.compute_dtype}"),
        ("name", run_name(config, plan)),
        ("segment", _segment_words(plan, total)),
        ("batches", _batches(config, plan)),
    ]
    if plan.kind != HAND_MADE:
        candidates = plan.conditions * config.sampling.candidates
        sampler = f"{config.sampling.steps} {config.sampling.sampler} steps each"
        rows.append(("sampling", f"{candidates} candidates, {sampler}"))
    steps = planned_steps(config, plan.sizes())
    rows += [
        ("optimizer steps", f"at most {steps} of {config.optimizer.samples_per_step} samples"),
        *_judge_rows(config, plan, evaluations),
        *_machine_rows(config, world, store, plan, evaluations),
        *permit,
    ]
    return rows


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


def _judge_rows(config: TrainNftConfig, plan: SegmentPlan, evaluations: int) -> list[Row]:
    rows: list[Row] = []
    audited = _audited(config, plan)
    if plan.kind == HAND_MADE:
        rows.append(("judge", f"{plan.conditions} groups, judged already"))
    else:
        rows.append(("judge", f"{config.judge.name}: {plan.conditions} groups, one request each"))
    if audited:
        name = config.audits.judge.name if config.audits.judge is not None else ""
        rows.append(("audits", f"{name}: about {audited} groups"))
    if config.heldout.conditions:
        words = f"{evaluations} evaluations of {config.heldout.conditions} x {config.heldout.samples}"
        if config.uses_api:
            words += f", within heldout_requests {config.heldout_requests}" if evaluations else ""
        off = "off: the judge is an API and heldout_requests is too small"
        rows.append(("held-out", words if evaluations else off))
    return [*rows, ("cost bound", _cost(config, plan, audited))]


def _audited(config: TrainNftConfig, plan: SegmentPlan) -> int:
    """Groups that the auditing judge will look at, about."""
    if plan.kind != "c" or config.audits.judge is None:
        return 0
    first = min(config.audits.first_conditions, plan.conditions)
    later = max(plan.batches - 1, 0) // config.audits.every_batches
    per_audit = -(-config.audits.groups // plan.per_batch) * plan.per_batch
    return min(first + later * per_audit, plan.conditions)


def _cost(config: TrainNftConfig, plan: SegmentPlan, audited: int) -> str:
    requests = plan.conditions if config.uses_api and plan.kind != HAND_MADE else 0
    auditing = config.audits.judge
    requests += audited if auditing is not None and auditing.name == "openai" else 0
    requests += config.heldout_requests if config.uses_api else 0
    if not requests:
        return "0: no paid request"
    most = requests * ATTEMPTS_PER_GROUP
    price = config.plan.dollars_per_request
    if price is None:
        return f"at most {most} paid requests; for money: --set plan.dollars_per_request=X"
    return f"at most {most * price:.2f} dollars: {most} requests ({requests}, each asked twice) at {price:g}"


def _machine_rows(
    config: TrainNftConfig, world: WorldConfig, store: ConditionStore, plan: SegmentPlan, evaluations: int
) -> list[Row]:
    frames = max(record.frames for record in store.select("pass"))
    sizes = estimates.measure_sizes(config, world, frames)
    gpus = config.plan.gpus or ranks().world_size
    disk = estimates.disk_bytes(config, sizes, plan, evaluations)
    memory = estimates.memory_gib(config, world, sizes, frames, gpus)
    peak = memory["weights"] + memory["training state"] + max(memory["activations"], memory["decoding"])
    seconds = estimates.days(config, world, plan, evaluations, gpus) * estimates.SECONDS_PER_DAY
    kind = "CPU processes" if world.preset == "arena" else config.plan.gpu.upper()
    time = f"{seconds / SECONDS_PER_HOUR / 24:.1f} days" if seconds > SECONDS_PER_HOUR else in_words(seconds)
    return [
        ("trained", f"{sizes.trained:,} of {sizes.parameters:,} parameters"),
        ("disk", f"about {sum(disk.values()) / 2**30:.2f} GiB: {_parts(disk, 2**30)}"),
        ("memory", f"about {peak:.1f} GiB a device: {_parts(memory, 1.0)}"),
        ("time", f"about {time} on {gpus} {kind}, judging not counted (it overlaps)"),
    ]


def _parts(values: Mapping[str, float], unit: float) -> str:
    return ", ".join(f"{name} {value / unit:.2f}" for name, value in values.items() if value)


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
