"""One condition to one finished group on disk: used by `rollout` and by `train-nft` alike.

A group's content depends on (run seed, batch, condition, policy) only: not on the rank, on what else is in the
batch, or on what ran before. So a group that survived a crash is the group that would be sampled again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from stateplay_rl.config.rollout import SamplingConfig
from stateplay_rl.errors import CheckError, InputError
from stateplay_rl.nft.randomness import DrawKey, generator
from stateplay_rl.nft.samplers import SOLVERS
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.stores.atomic import sha256_json
from stateplay_rl.stores.conditions import ConditionRecord, ConditionStore
from stateplay_rl.stores.groups import GroupRecord, GroupStore
from stateplay_rl.stores.video import decode_mp4
from stateplay_rl.worlds.base import ConditionInputs, PolicyName, World, WorldSpec
from stateplay_rl.worlds.policy_bank import sha256_tensors
from stateplay_rl.worlds.sampling import SamplingMethod, sample_candidates

NOISE = "initial_noise"
"""Purpose of the random stream that initial noise comes from."""


def policy_sha256(world: World, policy: PolicyName) -> str:
    """Identity of a policy: the hash of its exported weights, LoRA merged.

    So a policy that was exported and laid over the base weights keeps its name.
    """
    return sha256_tensors(world.export_policy(policy))


@dataclass(frozen=True)
class RolloutPlan:
    """What all groups of one rollout share."""

    seed: int
    batch: int
    sampling: SamplingConfig
    policy: PolicyName
    policy_sha256: str
    world_sha256: str

    def group_id(self, condition_id: str) -> str:
        """Content id: the same plan and condition always give the same id."""
        return sha256_json(
            {
                "condition": condition_id,
                "policy": self.policy_sha256,
                "world": self.world_sha256,
                "sampling": _sampling_identity(self.sampling),
                "seed": self.seed,
                "batch": self.batch,
            }
        )[:24]


def _sampling_identity(sampling: SamplingConfig) -> dict[str, Any]:
    """What of the settings makes other candidates; later settings at their defaults are left out: older ids stay."""
    settings = sampling.model_dump(mode="json")
    unused = {"taylor": ("cache_threshold",), "firstblock": ("cache_every",)}
    for name in unused.get(sampling.cache, ("cache_every", "cache_threshold")):
        del settings[name]
    defaults = {"latents": "float32", "solver": "euler", "cache": "none"}
    return {name: value for name, value in settings.items() if defaults.get(name) != value}


class HasSpec(Protocol):
    """As much of a world as a condition must fit."""

    spec: WorldSpec


def condition_inputs(store: ConditionStore, record: ConditionRecord, world: HasSpec) -> ConditionInputs:
    """Load a stored condition for the world's encoder.

    Raises:
        InputError: the stored first frame is not of the world's size.
    """
    first_frame = store.first_frame(record.condition_id)
    expected = (world.spec.frame_height, world.spec.frame_width, 3)
    if first_frame.shape != expected:
        raise InputError(
            f"condition {record.condition_id}: first frame is {first_frame.shape[1]}x{first_frame.shape[0]}, "
            f"world {world.spec.name} wants {expected[1]}x{expected[0]}",
            "build the conditions with this world's preset: sprl build-conditions --preset ...",
        )
    return ConditionInputs(
        record.condition_id,
        first_frame,
        store.held_actions(record.condition_id),
        record.prompt,
        record.latent_frames,
    )


def reference_frames(store: ConditionStore, record: ConditionRecord) -> np.ndarray | None:
    """The condition's real clip, uint8 [T, h, w, 3], cut to the used frames; None without a video."""
    path = store.clip_path(record)
    return None if path is None else decode_mp4(path)[: record.frames]


@dataclass(frozen=True)
class DrawnGroup:
    """A condition's candidates as the world made them, not yet on disk.

    Args:
        record: the condition.
        inputs: what the candidates were drawn from.
        latents_KCfHW: clean latents, bfloat16, on the CPU.
        frames: K uint8 arrays [T, h, w, 3].
    """

    record: ConditionRecord
    plan: RolloutPlan
    inputs: ConditionInputs
    latents_KCfHW: Tensor
    frames: tuple[np.ndarray, ...]

    @property
    def group_id(self) -> str:
        """The group's id."""
        return self.plan.group_id(self.record.condition_id)


def roll_out_group(
    world: World, store: ConditionStore, record: ConditionRecord, plan: RolloutPlan, groups: GroupStore
) -> str:
    """Sample, decode and store the candidates of one condition; a finished group is kept as it is.

    Returns:
        The group's id.

    Raises:
        CheckError: the policy samples values that are not finite.
    """
    group_id = plan.group_id(record.condition_id)
    if not groups.exists(group_id):
        store_group(store, draw_group(world, store, record, plan), groups)
    return group_id


def draw_group(world: World, store: ConditionStore, record: ConditionRecord, plan: RolloutPlan) -> DrawnGroup:
    """The device's part of a group: sample and decode.

    Raises:
        CheckError: the policy samples values that are not finite.
    """
    inputs, latents = sample_group(world, store, record, plan)
    if not bool(torch.isfinite(latents).all()):
        raise CheckError(
            f"policy {plan.policy_sha256[:12]} sampled NaN or infinity for condition {record.condition_id}",
            "the policy has diverged: go back to an earlier checkpoint and lower the learning rates",
        )
    return DrawnGroup(record, plan, inputs, latents.cpu(), tuple(world.decode(latents.float())))


def store_group(store: ConditionStore, drawn: DrawnGroup, groups: GroupStore) -> None:
    """The host's part: the real clip, mp4 files, hashes, `group.json` last."""
    record, plan = drawn.record, drawn.plan
    reference = reference_frames(store, record)
    groups.write(
        GroupRecord(
            group_id=drawn.group_id,
            condition_id=record.condition_id,
            batch=plan.batch,
            policy_sha256=plan.policy_sha256,
            world_sha256=plan.world_sha256,
            sampler=plan.sampling.sampler,
            sampling_steps=plan.sampling.steps,
            seeds=tuple(_noise_seed(plan, record, k) for k in range(plan.sampling.candidates)),
            prompt=record.prompt,
            fps=record.fps,
            frames=record.frames,
            latent_frames=record.latent_frames,
            buttons=tuple(tuple(int(v) for v in row) for row in drawn.inputs.held_actions_RK),
            action_bin_edges=record.action_bin_edges,
            latents_sha256=(),
            frames_sha256=(),
            has_reference=reference is not None,
            mechanics_class=record.mechanics_class,
        ),
        drawn.inputs.first_frame_hwc,
        list(drawn.latents_KCfHW),
        drawn.frames,
        reference,
    )


def sample_group(
    world: World, store: ConditionStore, record: ConditionRecord, plan: RolloutPlan
) -> tuple[ConditionInputs, Tensor]:
    """The candidates' clean latents [K, C, f, H, W], and the inputs that they were drawn from; nothing is stored."""
    inputs = condition_inputs(store, record, world)
    return inputs, _sample(world, inputs, record, plan)


def _noise_seed(plan: RolloutPlan, record: ConditionRecord, candidate: int) -> int:
    key = DrawKey(plan.seed, NOISE, batch=plan.batch, condition=record.condition_id, candidate=candidate)
    return key.seed()


def _sample(world: World, inputs: ConditionInputs, record: ConditionRecord, plan: RolloutPlan) -> Tensor:
    conditions = world.encode_conditions([inputs])
    sigmas = sampling_sigmas(plan.sampling.steps, plan.sampling.shift)
    parts = []
    for start in range(0, plan.sampling.candidates, plan.sampling.candidates_per_call):
        wanted = range(start, min(start + plan.sampling.candidates_per_call, plan.sampling.candidates))
        noise = [generator(_noise_seed(plan, record, k)) for k in wanted]
        batch = conditions.select([0] * len(wanted))
        parts.append(
            sample_candidates(
                world, batch, policy=plan.policy, sigmas=sigmas, noise=noise, method=sampling_method(plan.sampling)
            )
        )
    return torch.cat(parts)


def sampling_method(sampling: SamplingConfig) -> SamplingMethod:
    """What the settings name."""
    return SamplingMethod(
        rule_of=SOLVERS[sampling.solver],
        taylor_every=sampling.taylor_every,
        first_block=sampling.cache_threshold if sampling.cache == "firstblock" else None,
        latent_dtype=getattr(torch, sampling.latents),
    )


def picture_spread(candidates_KThwC: Sequence[np.ndarray]) -> float:
    """Diversity of a group: mean over pixels of the deviation between its candidates, in levels 0..255."""
    return float(np.stack(candidates_KThwC).astype(np.float32).std(axis=0).mean())
