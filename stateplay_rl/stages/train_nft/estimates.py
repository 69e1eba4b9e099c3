"""What a segment will take beside disk and money: memory, evaluations, days. Estimates, with what they rest on.

Speeds: performance.md's figures of one H200 at the real sizes, scaled; an L20 is about 7 times slower. They are to be
replaced by `sprl verify profile` of the machine itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stages.train_nft.sizes import BFLOAT16, FLOAT32, Sizes
from stateplay_rl.stores import layout
from stateplay_rl.worlds.native.presets import preset
from stateplay_rl.worlds.native.vae_presets import VAE_PRESETS

SLOWER_THAN_H200: Mapping[str, float] = {"h200": 1.0, "l20": 7.0}
H200_STEP_SECONDS, H200_DECODE_SECONDS = 0.22, 1.5
"""One forward of one video, hence one Euler step; VAE decode and MP4 of one candidate: 480x832x97."""
H200_SAMPLE_SECONDS: Mapping[bool, float] = {True: 0.96, False: 0.77}
"""Old forward, live forward and backward; with gradient checkpointing and without."""
H200_ANCHOR_SECONDS: Mapping[bool, float] = {True: 0.72, False: 0.56}
"""Forward and backward on the real clip."""
H200_STUDENT_SECONDS, STUDENT_GIB = 8.5, 25.6
"""The 9B student on a group of 124 pictures: reading, vision tower, prefill and scores; peak. From docs/student.md."""
CPU_STEP_SECONDS, CPU_DECODE_SECONDS, CPU_SAMPLE_SECONDS = 0.020, 0.12, 0.065
"""arena on one core of a 2024 server."""
ACTIVATION_TENSORS: Mapping[bool, float] = {True: 2.1, False: 17.0}
"""Token-by-width tensors per block that stay for the backward, with checkpointing and without; from performance.md."""
DECODE_GIB_AT_FULL_SIZE, FULL_SIZE_PIXELS = 15.2, 480 * 832 * 97
SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True)
class Evaluations:
    """Held-out evaluations of a segment: all of them, and those that the training judge is paid for."""

    all: int = 0
    paid: int = 0


def evaluations_of(config: TrainNftConfig, world: WorldConfig, plan: SegmentPlan) -> Evaluations:
    """Before the first batch, every n batches, and after the last one.

    A paid judge keeps to its own budget; where the world has a referee, that one judges the others.
    """
    if config.heldout.conditions == 0:
        return Evaluations()
    wanted = (0 if plan.extension else 1) + -(-plan.batches // config.heldout.every_batches)
    if not config.uses_api:
        return Evaluations(wanted)
    paid = min(wanted, config.heldout_requests // config.heldout.conditions)
    has_referee = world.preset == "arena" and config.referee == "auto"
    return Evaluations(wanted if has_referee else paid, paid)


def audited_groups(config: TrainNftConfig, plan: SegmentPlan) -> int:
    """Groups of stage C that the auditing judge will look at, about."""
    if plan.kind != "c" or config.audits.judge is None:
        return 0
    first = min(config.audits.first_conditions, plan.conditions)
    later = max(plan.batches - 1, 0) // config.audits.every_batches
    per_audit = -(-config.audits.groups // plan.per_batch) * plan.per_batch
    return min(first + later * per_audit, plan.conditions)


def memory_gib(config: TrainNftConfig, world: WorldConfig, sizes: Sizes, frames: int, ranks: int) -> dict[str, float]:
    """GiB on one device, by what; see `peak_gib` for what is there at the same time."""
    geometry, vae = preset(world.preset).transformer, VAE_PRESETS[world.preset]
    width = BFLOAT16 if world.compute_dtype == "bfloat16" else FLOAT32
    slots = (frames - 1) // 4 + 1
    grid = (world.frame_height // vae.spatial_factor // 2) * (world.frame_width // vae.spatial_factor // 2)
    tokens = slots * grid * config.optimizer.samples_per_call
    kept = ACTIVATION_TENSORS[world.gradient_checkpointing]
    shards = ranks if config.parallel.strategy == "sharded" else 1
    # live, old, reference, two moments and a gradient in float32; two float64 accumulators.
    state_bytes = sizes.trained * (6 * FLOAT32 + 2 * 8)
    pixels = world.frame_height * world.frame_width * frames
    found = {
        "weights": sizes.parameters * width / shards / 2**30,
        "training state": state_bytes / 2**30,
        "activations": kept * geometry.layers * tokens * geometry.dim * width / 2**30,
        "decoding": DECODE_GIB_AT_FULL_SIZE * pixels / FULL_SIZE_PIXELS,
    }
    return {**found, "student": STUDENT_GIB} if judged_by_big_student(config) else found


def peak_gib(memory: Mapping[str, float], *, student_waits: bool) -> float:
    """Weights and training state are there all the time; activations and decoding take turns.

    Args:
        student_waits: the student leaves the card between groups; otherwise it is there all the time too.
    """
    student = memory.get("student", 0.0)
    turns = max(memory["activations"], memory["decoding"], student if student_waits else 0.0)
    return memory["weights"] + memory["training state"] + turns + (0.0 if student_waits else student)


def judged_by_big_student(config: TrainNftConfig) -> bool:
    """Whether a student of full size judges in this process; arena's own is small. What cannot be read counts as big.

    A student's directory is checked when the run begins; a plan only looks.
    """
    folder = config.judge.reward_model
    if config.judge.name != "student" or folder is None:
        return False
    try:
        return bool(json.loads((folder / layout.STUDENT).read_bytes()).get("base") != "arena")
    except (OSError, ValueError, AttributeError):
        return True


def days(config: TrainNftConfig, world: WorldConfig, plan: SegmentPlan, evaluations: int, gpus: int) -> float:
    """Days of sampling, training and evaluating on so many GPUs (or CPU processes).

    A judge elsewhere overlaps with it; a student of full size takes its own time on the same GPUs.
    """
    candidate, sample, judging = _seconds(config, world)
    total = 0.0
    for size in plan.sizes():
        total += -(-size // gpus) * (config.sampling.candidates * candidate + judging)
        total += _visits_of_a_rank(config, size, gpus) * sample
    groups = -(-config.heldout.conditions // gpus)
    total += evaluations * groups * (config.heldout.samples * candidate + judging)
    return total / SECONDS_PER_DAY


def _visits_of_a_rank(config: TrainNftConfig, conditions: int, gpus: int) -> int:
    """Samples that the busiest rank trains on in a batch, every noise level counted: steps wait for each other."""
    samples, per_step = conditions * config.sampling.candidates, config.optimizer.samples_per_step
    whole, rest = divmod(samples, per_step)
    calls = whole * -(-per_step // gpus) + -(-rest // gpus)
    levels = config.sampling.steps if config.loss.full_schedule else 1
    return calls * config.optimizer.inner_epochs * levels


def _seconds(config: TrainNftConfig, world: WorldConfig) -> tuple[float, float, float]:
    """Seconds of one candidate, of one sample of one pass, and of one judgement on the same device."""
    if world.preset == "arena":
        return config.sampling.steps * CPU_STEP_SECONDS + CPU_DECODE_SECONDS, CPU_SAMPLE_SECONDS, 0.0
    slower, recompute = SLOWER_THAN_H200[config.plan.gpu], world.gradient_checkpointing
    candidate = config.sampling.steps * H200_STEP_SECONDS + H200_DECODE_SECONDS
    sample = H200_SAMPLE_SECONDS[recompute]
    if config.anchors.fm_real:
        sample += H200_ANCHOR_SECONDS[recompute] / config.anchors.anchor_every
    if config.anchors.reference_penalty:
        sample += H200_STEP_SECONDS
    judging = H200_STUDENT_SECONDS if judged_by_big_student(config) else 0.0
    return slower * candidate, slower * sample, slower * judging
