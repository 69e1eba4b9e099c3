"""A tiny world with samples, latents and real clips at hand, and directories of it on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stateplay_rl.config.rollout import RolloutConfig, SamplingConfig
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import JudgeDownError
from stateplay_rl.judges.base import GroupVerdict, failed, scored
from stateplay_rl.nft.randomness import DrawKey, normal
from stateplay_rl.stages.train_nft.draws import RealClip
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stages.train_nft.samples import JudgedGroup, Sample
from stateplay_rl.stages.train_nft.update import Updater
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import (
    ConditionRecord,
    ConditionStore,
    hash_actions,
    write_condition_files,
    write_conditions,
)
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.hashing import hash_frames
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.video import decode_mp4, encode_mp4
from stateplay_rl.worlds.base import ConditionBatch
from stateplay_rl.worlds.preparation import action_bin_edges
from tests.worlds.tiny import FRAMES, HEIGHT, SLOTS, WIDTH, tiny_inputs, tiny_world

ONE = Processes(0, 1, torch.device("cpu"))
CHANNELS, GRID = 4, 4


def make_config(**changes: Any) -> TrainNftConfig:
    """Settings for the tiny world; nested ones as dictionaries."""
    facts: dict[str, Any] = {
        "stage_conditions": 4,
        "conditions_per_batch": 2,
        "sampling": SamplingConfig(candidates=2, steps=3),
        "optimizer": {"samples_per_step": 4, "inner_epochs": 1, "learning_rate_transition": 1e-3},
        "tracker": "none",
        "judge": {"name": "referee"},
        "judging": {"retry_seconds": 0.01},
    }
    return TrainNftConfig(**{**facts, **changes})


class Bench:
    """Tiny world, objective and updater over made-up latents; `bad` and `no_clip` plant faults."""

    def __init__(self, mode: str = "transition", **changes: Any) -> None:
        self.config = make_config(mode=mode, **changes)
        self.world = tiny_world()
        self.groups = self.world.set_mode(mode)  # type: ignore[arg-type]
        self.parameters = [p for group in self.groups for p in group.parameters]
        self.inputs = {item.condition_id: item for item in tiny_inputs(4)}
        self.bad: set[tuple[str, int]] = set()
        self.no_clip: set[str] = set()
        self.objective = Objective(self.world, self.config, self.conditions_of, self.latents_of, self.real_of)
        self.updater = Updater(self.objective, self.groups, self.config, ONE)

    def conditions_of(self, ids: Sequence[str]) -> ConditionBatch:
        return self.world.encode_conditions([self.inputs[i] for i in ids])

    def latents_of(self, sample: Sample) -> Tensor:
        key = DrawKey(5, "latents", condition=sample.condition_id, candidate=sample.candidate)
        latents = normal(key, (CHANNELS, sample.latent_frames, GRID, GRID)).bfloat16().float()
        return latents * float("nan") if (sample.condition_id, sample.candidate) in self.bad else latents

    def real_of(self, condition_id: str) -> RealClip | None:
        if condition_id in self.no_clip:
            return None
        slots = self.inputs[condition_id].latent_frames
        latents = normal(DrawKey(6, "clip", condition=condition_id), (CHANNELS, slots, GRID, GRID))
        return RealClip(latents, self.world.transition_codes(latents[None])[0])

    def shorten(self, condition_id: str, slots: int = SLOTS - 1) -> None:
        """Make a condition's clip shorter than the others'."""
        self.inputs[condition_id] = replace(self.inputs[condition_id], latent_frames=slots)

    def samples(self, count: int = 4, r: Sequence[float] = (1.0, 0.0, 0.9, 0.2)) -> list[Sample]:
        """Two candidates a condition, in order."""
        ids = list(self.inputs)
        return [
            Sample(f"g-{ids[k // 2]}", ids[k // 2], k % 2, r[k % len(r)], self.inputs[ids[k // 2]].latent_frames)
            for k in range(count)
        ]

    def nudge(self, policy: str, size: float = 0.05) -> None:
        """Move `live` or `old` a little, everywhere."""
        state = self.world.policies.state(policy)  # type: ignore[arg-type]
        moved = {n: v + size * normal(DrawKey(8, "nudge", condition=n), v.shape) for n, v in state.items()}
        self.world.policies.load(policy, moved)  # type: ignore[arg-type]


def no_anchors(**changes: Any) -> dict[str, Any]:
    return {"fm_real": 0.0, "transition_real": 0.0, **changes}


def judged(
    number: int = 0,
    scores: Sequence[float | None] = (10.0, 90.0),
    reason: str | None = None,
    motion: float = 4.0,
    **changes: Any,
) -> JudgedGroup:
    """A judged group with plain picture measures; `picture_real` is like the candidates unless given."""
    picture = {"luma": 100.0, "saturation": 50.0, "motion": motion, "diversity": 8.0}
    facts: dict[str, Any] = {
        "group_id": f"g{number}",
        "condition_id": f"c{number}",
        "mechanics_class": ("normal", "macro_hit")[number % 2],
        "latent_frames": SLOTS,
        "scores": tuple(scores),
        "reason": reason,
        "line": {"group_id": f"g{number}", "details": {}},
        "picture": picture,
        "picture_real": {"luma": 100.0, "saturation": 50.0, "motion": 4.0},
    }
    return JudgedGroup(**{**facts, **changes})


class BrightJudge:
    """Scores by the picture's mean: the same pixels always get the same points; `down_for` questions go unanswered."""

    judge_id = "bright"
    protocol_sha256 = hashlib.sha256(b"bright").hexdigest()

    def __init__(self, fails: Sequence[str] = (), factor: float = 37.0) -> None:
        self.fails = set(fails)
        self.factor = factor
        self.asked: list[str] = []
        self.down_for = 0

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        self.asked.append(group.record.condition_id)
        if self.down_for > 0:
            self.down_for -= 1
            raise JudgeDownError("connection refused", "wait")
        if group.record.condition_id in self.fails:
            return failed(group.record.candidates, "no_json: planted")
        means = [float(decode_mp4(group.candidate_video(k)).mean()) for k in range(group.record.candidates)]
        return scored([round((mean * self.factor) % 100.0, 3) for mean in means])


def open_out(path: Path, schema: str, config: Any, inputs: dict[str, Path] | None = None) -> OutputDirectory:
    return OutputDirectory.open(
        path,
        schema=schema,
        version=layout.SCHEMAS[schema],
        command="test",
        config=config,
        inputs=inputs or {},
        resume=False,
        overwrite=False,
    )


def clip_frames(seed: int) -> np.ndarray:
    """A smooth moving picture of one frame more than is used."""
    ramp = np.add.outer(np.arange(HEIGHT) * 3, np.arange(WIDTH) * 2)
    frames = np.stack([(ramp + 9 * t + 40 * seed) % 220 for t in range(FRAMES + 1)]).astype(np.uint8)
    return np.repeat(frames[..., None], 3, axis=-1)


def write_tiny_conditions(
    root: Path, passing: int = 4, heldout: int = 2, without_clip: Sequence[int] = ()
) -> ConditionStore:
    """`root/conditions` with videos in `root/data`; the conditions of `without_clip` have none."""
    data = root / "data"
    data.mkdir(parents=True)
    records = []
    with open_out(root / "conditions", "conditions", RolloutConfig()) as out:
        for order, item in enumerate(tiny_inputs(passing + heldout)):
            raw_RK = item.held_actions_RK.astype(np.int32)
            write_condition_files(out, f"c{order}", item.first_frame_hwc, raw_RK, raw_RK, {})
            if order not in without_clip:
                encode_mp4(data / f"{order}.mp4", clip_frames(order), 20.0)
            records.append(
                ConditionRecord(
                    condition_id=f"c{order}",
                    clip=None if order in without_clip else f"{order}.mp4",
                    prompt=item.prompt,
                    mechanics_class=("normal", "macro_hit")[order % 2],
                    distribution="normal",
                    npc_category="",
                    strategy="",
                    fps=20.0,
                    frames=FRAMES,
                    latent_frames=SLOTS,
                    action_rows=len(raw_RK),
                    action_bin_edges=action_bin_edges(len(raw_RK), SLOTS),
                    first_frame_sha256=hash_frames(item.first_frame_hwc),
                    actions_sha256=hash_actions(raw_RK),
                    cluster_id=order,
                    pool="pass" if order < passing else "heldout",
                    student_split="train",
                    order=order,
                    warnings=(),
                )
            )
        write_conditions(out, records)
        out.seal(extra={"data_root": str(data)})
    return ConditionStore.open(root / "conditions")
