"""What a segment will take beside disk and money: memory, evaluations, days. Estimates, with what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import Checkpointing, WorldConfig
from stateplay_rl.nft.samplers import evaluations as evaluations_of_model
from stateplay_rl.stages.group_size import BFLOAT16
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stages.train_nft.sizes import FLOAT32, Sizes
from stateplay_rl.stages.train_nft.speeds import ARENA_CORE, H200_BY_CHECKPOINTING, Speeds
from stateplay_rl.stores import layout
from stateplay_rl.stores.foreign import parse_json
from stateplay_rl.worlds.native.presets import preset
from stateplay_rl.worlds.native.vae_presets import VAE_PRESETS

STUDENT_GIB = 24.7
"""Peak of the 9B student on a group of 124 pictures; docs/student.md."""
ACTIVATION_TENSORS: Mapping[Checkpointing, float] = {"full": 4.4, "selective": 10.9, "off": 17.6}
"""Token-by-width tensors per block that stay for the backward, by checkpointing: the rest of a measured micro-step's
peak (docs/speed.md), states and text of a rank's four samples included."""
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
        return bool(parse_json((folder / layout.STUDENT).read_bytes()).get("base") != "arena")
    except (OSError, ValueError, AttributeError):
        return True


def days(config: TrainNftConfig, world: WorldConfig, plan: SegmentPlan, evaluations: int, gpus: int) -> float:
    """Days of sampling, training and evaluating on so many GPUs (or CPU processes).

    A judge elsewhere overlaps with it; a student of full size takes its own time on the same GPUs.
    """
    if world.preset == "arena":
        speeds = ARENA_CORE
    else:
        speeds = H200_BY_CHECKPOINTING[world.gradient_checkpointing].on(config.plan.gpu)
    return sum(seconds_of_parts(config, plan, evaluations, gpus, speeds).values()) / SECONDS_PER_DAY


def seconds_of_parts(
    config: TrainNftConfig, plan: SegmentPlan, evaluations: int, gpus: int, speeds: Speeds
) -> dict[str, float]:
    """Seconds of a segment's parts, on the GPU that has most to do.

    Args:
        evaluations: of the held-out conditions.
        gpus: or CPU processes.
        speeds: of one of them.
    """
    sampling, anchors, held = config.sampling, config.anchors, config.heldout
    candidate = evaluations_of_model(sampling.steps, sampling.taylor_every) * speeds.step
    # The cross-entropy of the transition anchor alone needs no forward of the video.
    sample = speeds.sample + (speeds.anchors / anchors.anchor_every if anchors.fm_real else 0.0)
    sample += speeds.step if anchors.reference_penalty else 0.0
    anchored = bool(anchors.fm_real) or bool(anchors.transition_real)
    sizes = plan.sizes()
    groups = sum(-(-size // gpus) for size in sizes)
    judged = evaluations * -(-held.conditions // gpus)
    student = speeds.student if judged_by_big_student(config) else 0.0
    return {
        "sampling": groups * sampling.candidates * candidate,
        "decoding": groups * sampling.candidates * speeds.decode,
        "encoding": groups * speeds.encode if anchored else 0.0,
        "training": sum(_visits_of_a_rank(config, size, gpus) for size in sizes) * sample,
        "held-out": judged * held.samples * (candidate + speeds.decode),
        "student": (groups + judged) * student,
    }


def _visits_of_a_rank(config: TrainNftConfig, conditions: int, gpus: int) -> int:
    """Samples that the busiest rank trains on in a batch, every noise level counted: steps wait for each other."""
    samples, per_step = conditions * config.sampling.candidates, config.optimizer.samples_per_step
    whole, rest = divmod(samples, per_step)
    calls = whole * -(-per_step // gpus) + -(-rest // gpus)
    levels = config.sampling.steps if config.loss.full_schedule else 1
    return calls * config.optimizer.inner_epochs * levels
