"""`sprl verify preflight`: everything that can be known before a long run, as a checklist with what to do."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stateplay_rl.checks import preflight_world
from stateplay_rl.checks.audit.trainable import require_trainable_audit
from stateplay_rl.checks.lines import CheckLine, NotChecked, require, run_check
from stateplay_rl.checks.preflight_data import check_sample, spread_sample
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.verify import PreflightConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import CheckError
from stateplay_rl.evaluation.picture import measure_detail, measure_picture, picture_drift
from stateplay_rl.judges.base import checked
from stateplay_rl.judges.remote import closing_judge
from stateplay_rl.stages.candidates import (
    RolloutPlan,
    condition_inputs,
    policy_sha256,
    reference_frames,
    roll_out_group,
)
from stateplay_rl.stages.judge_choice import make_judge
from stateplay_rl.stages.train_nft import heldout
from stateplay_rl.stages.train_nft.disk import Need, require_room
from stateplay_rl.stages.train_nft.inputs import TrainInputs
from stateplay_rl.stages.train_nft.load import work_out
from stateplay_rl.stages.train_nft.permissions import preflight_config, require_gate
from stateplay_rl.stages.train_nft.plan import make_plan
from stateplay_rl.stages.train_nft.segments import plan_segment
from stateplay_rl.stages.verify import VerifySummary, default_out, seal_record
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionRecord, ConditionStore
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from stateplay_rl.stores.manifest import OutputDirectory, read_manifest
from stateplay_rl.worlds.base import World, WorldSpec
from stateplay_rl.worlds.load import load_world, world_spec
from stateplay_rl.worlds.world_files import all_files, resolve_world

Check = Callable[["_Preflight"], str]


@dataclass
class _Preflight:
    """What the checks share. A part that could not be made is None, and what needs it is skipped."""

    config: PreflightConfig
    train: TrainNftConfig
    world_config: WorldConfig
    spec: WorldSpec
    run: Path
    work: Path
    store: ConditionStore | None = None
    sample: list[ConditionRecord] = field(default_factory=list)
    groups: list[StoredGroup] = field(default_factory=list)
    measures: dict[str, Any] = field(default_factory=dict)

    def conditions(self) -> ConditionStore:
        """The opened conditions.

        Raises:
            NotChecked: they could not be opened.
        """
        if self.store is None:
            raise NotChecked("needs the conditions", "give --conditions DIR of sprl build-conditions")
        return self.store


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
            flight = _Preflight(config, train, world_config, world_spec(world_config), place, Path(work))
            lines = tuple(run_check(name, partial(check, flight)) for name, check in CHECKS)
        summary = VerifySummary("preflight", directory.path, lines, _words(lines))
        extra = {"train_config_sha256": preflight_config(train)}
        seal_record(directory, summary, config.conditions, flight.measures, extra)
    return summary


def _audit(flight: _Preflight) -> str:
    audit = require_trainable_audit(flight.train.audit, flight.world_config, flight.train.world)
    return f"{flight.train.audit} passed, of these very files ({len(audit['files'])})"


def _conditions(flight: _Preflight) -> str:
    if flight.config.conditions is None:
        raise CheckError("no conditions were given", "give --conditions DIR of sprl build-conditions")
    store = ConditionStore.open(flight.config.conditions)
    heldout.choose_heldout(store, flight.train.heldout.conditions)
    passed, held = len(store.select("pass")), len(store.select("heldout"))
    require(passed > 0, f"{flight.config.conditions} has no condition in pool 'pass'")
    flight.sample = spread_sample(store.select("pass"), flight.config.sample)
    flight.store = store
    return f"{passed} conditions in the pass, {held} held out"


def _frames(flight: _Preflight) -> str:
    return check_sample(flight.conditions(), flight.sample, flight.spec)


def _plan(flight: _Preflight) -> str:
    flight.conditions()
    assert flight.config.conditions is not None, "opened"
    rows = make_plan(flight.train, TrainInputs(flight.config.conditions), flight.run)
    flight.measures["plan"] = dict(rows)
    shown = [f"{name}: {value}" for name, value in rows if name in ("batches", "optimizer steps", "cost bound", "time")]
    return "; ".join(shown)


def _gate(flight: _Preflight) -> str:
    """Stage C: the gate of the student that will judge, and the student read from disk twice."""
    if flight.train.stage != "c":
        raise NotChecked("stage A has no gate")
    spec, world = flight.train.judge, flight.train.world
    judges = [make_judge(spec, world=world, out=flight.run) for _ in range(2)]
    require_gate(flight.train.model_copy(update={"force_without_gate": False}), judges[0])
    if not flight.groups:
        raise NotChecked("the gate is passed; the student judged nothing, as there are no baseline rollouts")
    scores = []
    for judge in judges:
        with closing_judge(judge):
            scores.append([judge.score_group(group).scores for group in flight.groups])
    require(scores[0] == scores[1], f"the student read from disk again scores {scores[1]}, before {scores[0]}")
    return f"passed; the student was read from disk twice and scores {len(flight.groups)} groups alike"


def _gradients(flight: _Preflight) -> str:
    store, longest = flight.conditions(), flight.sample[0]
    phrases = []
    for mode in dict.fromkeys((*preflight_world.MODES, flight.train.mode)):
        world = load_world(flight.world_config)
        began = time.monotonic()
        batch = world.encode_conditions([condition_inputs(store, longest, world)])
        batch = batch.select([0] * flight.train.optimizer.samples_per_call)
        norms = preflight_world.visit(world, mode, batch, flight.train.loss)
        seconds = time.monotonic() - began
        flight.measures.setdefault("training_seconds", {})[mode] = round(seconds, 3)
        phrases.append(f"{mode} " + ", ".join(f"{name} {norm:.1e}" for name, norm in norms.items()))
        del world
        _free_memory()
    return f"{longest.frames} frames, {flight.train.optimizer.samples_per_call} samples a call: " + "; ".join(phrases)


def _rollouts(flight: _Preflight) -> str:
    store = flight.conditions()
    world = load_world(flight.world_config)
    world.set_mode(flight.train.mode)
    sha256 = policy_sha256(world, "live")
    plan = RolloutPlan(flight.train.seed, 0, flight.train.sampling, "live", sha256, world.sha256)
    groups = GroupStore(flight.work / "groups")
    began = time.monotonic()
    for record in flight.sample:
        flight.groups.append(groups.read(roll_out_group(world, store, record, plan, groups)))
    candidates = flight.train.sampling.candidates * len(flight.sample)
    seconds = (time.monotonic() - began) / candidates
    flight.measures["seconds_per_candidate"] = round(seconds, 3)
    return f"{_statistics(flight, world)}; {seconds:.2f} s a candidate"


def _statistics(flight: _Preflight, world: World) -> str:
    """Pictures of the untrained policy against the real clips: what the alarms will compare with."""
    del world  # decoded already; its memory is the caller's to free
    _free_memory()
    from stateplay_rl.stores.video import decode_mp4

    generated, real = {}, {}
    for group, record in zip(flight.groups, flight.sample, strict=True):
        videos = [decode_mp4(group.candidate_video(k)) for k in range(group.record.candidates)]
        generated[record.condition_id] = [{**measure_picture(v), **measure_detail(v)} for v in videos]
        clip = reference_frames(flight.conditions(), record)
        if clip is not None:
            real[record.condition_id] = {**measure_picture(clip), **measure_detail(clip)}
    drift = picture_drift(generated, real)
    if drift is None:
        raise NotChecked("no condition of the sample has a real clip to compare with")
    flight.measures["picture_ratio"] = drift.ratio
    monitors = flight.train.monitors
    problems = preflight_world.picture_problems(drift, monitors.luma_shift, monitors.motion_ratio)
    if problems:
        raise CheckError(
            f"the base policy's videos are not like the real clips: {'; '.join(problems)}",
            "look at them: sprl rollout --limit 4, then sprl report; is it the right checkpoint, VAE and frame size?",
        )
    shown = ", ".join(f"{name} {value:.2f}" for name, value in drift.ratio.items() if value is not None)
    return f"{drift.conditions} conditions, generated over real: {shown}"


def _judge(flight: _Preflight) -> str:
    """One full request: the very judge, endpoint and protocol of the run, with a real group."""
    if not flight.groups:
        raise NotChecked("there are no baseline rollouts to judge")
    group = flight.groups[0]
    with closing_judge(make_judge(flight.train.judge, world=flight.train.world, out=flight.run)) as judge:
        began = time.monotonic()
        verdict = checked(judge.score_group(group), group.record.candidates)
    seconds = time.monotonic() - began
    if verdict.status != "scored":
        raise CheckError(
            f"judge {judge.judge_id} gave no scores: {verdict.reason}",
            "see the request with: sprl score --dry-run; then try it with: sprl score --probe",
        )
    scores = ", ".join(f"{score:g}" for score in verdict.scores if score is not None)
    alike = len(set(verdict.scores)) == 1
    note = "; all alike: run sprl score --probe before you trust it" if alike else ""
    return f"{judge.judge_id} scored one group in {seconds:.1f} s: {scores}{note}"


def _disk(flight: _Preflight) -> str:
    """The plan's bytes, with a group's bytes as they were measured here."""
    store = flight.conditions()
    assert flight.config.conditions is not None, "opened"
    total, smoke = len(store.select("pass")), flight.train.stage == "c"
    plan = plan_segment(flight.train, TrainInputs(flight.config.conditions), flight.run, total, smoke=smoke)
    needs = work_out(flight.train, flight.world_config, store.select("pass"), plan, flight.run).disk
    measured = [sum(f.stat().st_size for f in group.folder.iterdir()) for group in flight.groups]
    if measured:
        most = max(needs["groups"].bytes, max(measured) * float(plan.conditions))
        needs["groups"] = Need(flight.run, most)
    require_room(needs)
    needed = int(sum(need.bytes for need in needs.values()))
    flight.measures["disk_bytes"] = {name: int(need.bytes) for name, need in needs.items()}
    return f"{needed / 2**30:.2f} GiB needed where {flight.run} will lie, and free"


def _memory(flight: _Preflight) -> str:
    if "training_seconds" not in flight.measures or not flight.groups:
        raise NotChecked("nothing was sampled or trained, so nothing was measured")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    memory = preflight_world.memory_of(device)
    flight.measures["peak_memory_bytes"] = memory.peak
    return memory.line() + ", one rank, optimizer state not included"


def _resume(flight: _Preflight) -> str:
    """A passed kill drill of this config on all ranks: `sprl verify resume`."""
    again = "run sprl verify resume CONFIG --conditions DIR --processes RANKS, then give --resume-record DIR"
    record = flight.config.resume_record
    if record is None:
        if flight.train.run_mode == "production":
            raise CheckError("no kill drill of this config", again)
        raise NotChecked("no kill drill was named; production mode needs one", again)
    extra = read_manifest(record, schema="verify", verify_files=True).extra
    if extra.get("kind") != "resume" or extra.get("passed") is not True:
        raise CheckError(f"{record} is no passed kill drill", again)
    if extra.get("train_config_sha256") != preflight_config(flight.train):
        raise CheckError(f"{record} is a drill of another config", again)
    return f"{record} passed with {extra['processes']} processes"


CHECKS: tuple[tuple[str, Check], ...] = (
    ("audit", _audit),
    ("conditions", _conditions),
    ("frames and actions", _frames),
    ("plan", _plan),
    ("gradient map", _gradients),
    ("baseline rollouts", _rollouts),
    ("judge", _judge),
    ("gate and student", _gate),
    ("disk", _disk),
    ("memory", _memory),
    ("kill and resume", _resume),
)
"""In this order: what is cheap and what others need comes first."""


def _words(lines: tuple[CheckLine, ...]) -> tuple[str, ...]:
    counts = {status: sum(line.status == status for line in lines) for status in ("passed", "failed", "skipped")}
    text = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped."
    if counts["failed"]:
        return (text + " Mend what failed, then run it again: production mode asks for a passed record.",)
    return (text + " For production mode: --set preflight=DIR of this record.",)


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
