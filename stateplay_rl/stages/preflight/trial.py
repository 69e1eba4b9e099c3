"""Lines that try it: gradients, rollouts, one request to the judge, the student, and the memory that they took."""

from __future__ import annotations

import gc
import time

import torch

from stateplay_rl.checks import preflight_world
from stateplay_rl.checks.lines import NotChecked
from stateplay_rl.errors import CheckError
from stateplay_rl.evaluation.picture import measure_detail, measure_picture, picture_drift
from stateplay_rl.judges.base import Judge, checked
from stateplay_rl.judges.mix import MixJudge
from stateplay_rl.judges.remote import closing_judge
from stateplay_rl.reward_model.judge import StudentJudge
from stateplay_rl.stages.candidates import (
    RolloutPlan,
    condition_inputs,
    policy_sha256,
    reference_frames,
    roll_out_group,
)
from stateplay_rl.stages.judge_choice import make_judge
from stateplay_rl.stages.preflight.flight import Flight
from stateplay_rl.stages.train_nft.permissions import require_gate
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.worlds.load import load_world


def check_gradients(flight: Flight) -> str:
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


def check_rollouts(flight: Flight) -> str:
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
    del world
    _free_memory()
    return f"{_statistics(flight)}; {seconds:.2f} s a candidate"


def _statistics(flight: Flight) -> str:
    """Pictures of the untrained policy against the real clips: what the alarms will compare with."""
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


def check_judge(flight: Flight) -> str:
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


def check_gate(flight: Flight) -> str:
    """Stage C: the gate of the student that will judge, and the student saved, read back and asked again."""
    if flight.train.stage != "c":
        raise NotChecked("stage A has no gate")
    judge = make_judge(flight.train.judge, world=flight.train.world, out=flight.run)
    with closing_judge(judge):
        require_gate(flight.train.model_copy(update={"force_without_gate": False}), judge)
        students = _students(judge)
        if not students:
            raise NotChecked("the gate is passed; the judge has no local student to be saved and read back")
        if not flight.groups:
            raise NotChecked("the gate is passed; the student judged nothing, as there are no baseline rollouts")
        for number, student in enumerate(students):
            _round_trip(student, flight, f"student-{number}")
    return f"passed; the student was saved, read back, and scores {len(flight.groups)} groups as before"


def _students(judge: Judge) -> list[StudentJudge]:
    judges = [part.judge for part in judge.parts.values()] if isinstance(judge, MixJudge) else [judge]
    return [part for part in judges if isinstance(part, StudentJudge)]


def _round_trip(student: StudentJudge, flight: Flight, folder: str) -> None:
    """Scores of the adapter that was read, written and read again must be the scores of the adapter on disk.

    Raises:
        CheckError: they differ, or no group got scores.
    """
    before = [student.score_group(group) for group in flight.groups]
    if all(verdict.status != "scored" for verdict in before):
        raise CheckError(
            f"the student gave no scores to any of {len(before)} groups: {before[0].reason}",
            "look at its evaluation: sprl report REWARD_MODEL; then train it again: sprl train-rm",
        )
    student.save_and_reload(flight.work / folder)
    after = [student.score_group(group) for group in flight.groups]
    for group, old, new in zip(flight.groups, before, after, strict=True):
        if old.scores != new.scores:
            raise CheckError(
                f"group {group.record.group_id}: the student saved and read back scores {list(new.scores)}, before "
                f"{list(old.scores)}",
                "compare the versions of peft and transformers with those in its manifest; then sprl train-rm again",
            )


def check_memory(flight: Flight) -> str:
    if "training_seconds" not in flight.measures or not flight.groups:
        raise NotChecked("nothing was sampled or trained, so nothing was measured")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    memory = preflight_world.memory_of(device)
    flight.measures["peak_memory_bytes"] = memory.peak
    return memory.line() + ", one rank, optimizer state not included"


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
