"""One arm of the study: the stage's updater, objective, samples, metrics and monitors in a loop without a disk.

Shapes: G conditions a batch, K candidates, T frames, h w picture height and width.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arm_data import LONG_FRAMES, LONG_SLOTS, ClipSet, load_clip_set, true_trajectory
from arm_judges import Judged, horizon, judge_videos, judged_groups
from arm_objectives import BestOfObjective, SupervisedObjective, best_of_groups
from arms import METHODS, TIMED_BATCHES, Arm, Scale, config_of
from flow_grpo import FlowGrpoObjective, Trajectory, sample_trajectories

from stateplay_rl.config.base import config_dict
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.evaluation.picture import measure_detail, measure_picture
from stateplay_rl.nft.randomness import DrawKey, generator
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.stages.candidates import NOISE, picture_spread
from stateplay_rl.stages.train_nft.details import measure_details
from stateplay_rl.stages.train_nft.metrics import Counters, batch_metrics
from stateplay_rl.stages.train_nft.monitors import alarms_of, heldout_alarms
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stages.train_nft.samples import BatchSamples, JudgedGroup, Sample, build_samples, plan_steps
from stateplay_rl.stages.train_nft.update import Updater
from stateplay_rl.worlds.base import ConditionBatch
from stateplay_rl.worlds.load import load_native_world
from stateplay_rl.worlds.native.world import NativeWorld
from stateplay_rl.worlds.sampling import initial_noise, sample_candidates
from stateplay_rl.worlds.world_files import arena_world

GPU_VIDEOS_PER_CALL, CPU_VIDEOS_PER_CALL = 64, 8
GPU_VAE_VIDEOS = 64
CLIP_RANGE = 1e-3


def open_world(device: torch.device) -> NativeWorld:
    """Arena's base world on a device; on a GPU the VAE takes many videos at once."""
    world = load_native_world(arena_world().model_copy(update={"device": str(device)}))
    if device.type == "cuda":
        vae = world.modules.vae
        vae.architecture = replace(vae.architecture, samples_per_call=GPU_VAE_VIDEOS, slots_per_call=LONG_SLOTS)
        vae.to(memory_format=torch.contiguous_format)
    return world


@dataclass
class Clock:
    """Seconds by part; the GPU's queue is emptied at both ends."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        self._wait()
        began = time.perf_counter()
        yield
        self._wait()
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Run:
    """An arm in progress."""

    def __init__(self, arm: Arm, scale: Scale, root: Path, device: torch.device) -> None:
        self.arm, self.scale, self.device = arm, scale, device
        self.method = METHODS[arm.method]
        on_gpu = device.type == "cuda"
        self.config = config_of(arm, scale, samples_per_call=GPU_VIDEOS_PER_CALL if on_gpu else CPU_VIDEOS_PER_CALL)
        self.world = open_world(device)
        groups = self.world.set_mode(self.config.mode)
        count = self.config.conditions_per_batch * arm.batches
        clips, tune = self.method.clips, arm.purpose == "tune"
        self.train: ClipSet | None = None
        if count:
            self.train = load_clip_set(root, arm.train_clips, training_total(scale, tune=tune), clips, device, count)
        heldout = scale.tune_heldout if tune else scale.heldout
        self.heldout = load_clip_set(root, arm.heldout_clips, heldout, "true", device)
        self.heldout_truths = [true_trajectory(c) for c in self.heldout.conditions]
        self.latents: dict[tuple[str, int], torch.Tensor] = {}
        self.trajectories: dict[tuple[str, int], Trajectory] = {}
        self.objective = self._objective()
        self.updater = Updater(self.objective, groups, self.config, Processes(0, 1, device))
        self.sigmas = sampling_sigmas(self.config.sampling.steps, self.config.sampling.shift)
        self.lines: list[dict[str, Any]] = []
        self.alarms: list[dict[str, Any]] = []
        self.curve: list[dict[str, Any]] = []
        self.seconds: list[dict[str, float]] = []

    def _objective(self) -> Objective:
        shared = (self.world, self.config, self._conditions_of)
        if self.method.kind == "flow_grpo":
            noise = self.arm.setting.noise_level
            return FlowGrpoObjective(
                *shared, self._real_of, self.trajectories, noise_level=noise, clip_range=CLIP_RANGE
            )
        kinds = {"rejection": BestOfObjective, "sft": SupervisedObjective}
        return kinds.get(self.method.kind, Objective)(*shared, self._latents_of, self._real_of)

    # -- what the objective asks for -------------------------------------------------------------------

    @property
    def _train(self) -> ClipSet:
        assert self.train is not None, "an arm without batches trains on nothing"
        return self.train

    def _conditions_of(self, ids: Sequence[str]) -> ConditionBatch:
        rows = self._train.rows
        return self._train.batch.select([rows[name] for name in ids])

    def _latents_of(self, sample: Sample) -> torch.Tensor:
        return self.latents[sample.condition_id, sample.candidate]

    def _real_of(self, condition_id: str) -> Any:
        return self._train.clip(self._train.rows[condition_id])

    # -- the loop --------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """All batches and evaluations; JSON values."""
        began = time.perf_counter()
        if 0 in self.arm.evaluate_at:
            self._evaluate(0)
        for batch in range(self.arm.batches):
            self._batch(batch)
            if batch + 1 in self.arm.evaluate_at:
                self._evaluate(batch + 1)
        final = {} if self.arm.purpose in ("time", "tune") else self._final()
        objective = self.objective
        clipped = objective.clipped / objective.visited if isinstance(objective, FlowGrpoObjective) else None
        return {
            "name": self.arm.name,
            "purpose": self.arm.purpose,
            "method": self.arm.method,
            "judge": self.arm.judge,
            "seed": self.arm.seed,
            "setting": {"number": self.arm.number, "overrides": dict(self.arm.setting.overrides)},
            "noise_level": self.arm.setting.noise_level,
            "clipped_share": clipped,
            "config": config_dict(self.config),
            "candidates_per_batch": self.config.conditions_per_batch * self.config.sampling.candidates,
            "curve": self.curve,
            "metrics": self.lines,
            "alarms": self.alarms,
            "seconds": self.seconds,
            "final": final,
            "wall_seconds": time.perf_counter() - began,
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "torch": torch.__version__,
        }

    def _batch(self, batch: int) -> None:
        clock = Clock(self.device)
        per_batch = self.config.conditions_per_batch
        rows = list(range(batch * per_batch, (batch + 1) * per_batch))
        groups: list[JudgedGroup] = []
        if self.method.kind == "sft":
            samples = self._supervised_samples(rows, batch)
        else:
            built, groups = self._rolled_out(rows, batch, clock)
            samples = best_of_groups(built.samples) if self.method.kind == "rejection" else list(built.samples)
        with clock("train"):
            steps = plan_steps(samples, self._step_config(samples), batch)
            stats = self.updater.run(steps, batch, len(steps) // self.config.optimizer.inner_epochs)
        if groups:
            counters = Counters(batch, "a", self.updater.optimizer_steps, (batch + 1) * len(rows) * self._candidates)
            line = batch_metrics(groups, built, stats, self.world, self.config, counters)
            if self.method.kind == "nft" and built.samples and batch % self.config.monitors.detail_every_batches == 0:
                processes = self.updater.processes
                line.update(measure_details(self.objective, self.updater.groups, built, batch, processes))
            best = max((x["reward_mean"] for x in self.lines), default=None)
            self.alarms += alarms_of(line, self.lines[0] if self.lines else None, self.config, best)
            self.lines.append({name: value for name, value in line.items() if name != "details"})
            self.world.policies.update_old(line["eta"])
        else:
            self.world.policies.update_old(0.0)
        self.latents.clear()
        self.trajectories.clear()
        self.seconds.append(clock.seconds)

    @property
    def _candidates(self) -> int:
        return self.config.sampling.candidates

    def _step_config(self, samples: Sequence[Sample]) -> TrainNftConfig:
        """Best of 4 trains a quarter of the samples: all methods take one step a pass."""
        optimizer = self.config.optimizer.model_copy(update={"samples_per_step": max(len(samples), 1)})
        return self.config.model_copy(update={"optimizer": optimizer})

    def _supervised_samples(self, rows: Sequence[int], batch: int) -> list[Sample]:
        """As many draws on each real clip as other methods have candidates."""
        ids, slots = self._train.batch.condition_ids, self._train.batch.latent_frames
        return [Sample(f"{batch}-{ids[r]}", ids[r], k, 0.5, slots) for r in rows for k in range(self._candidates)]

    def _rolled_out(self, rows: Sequence[int], batch: int, clock: Clock) -> tuple[BatchSamples, list[JudgedGroup]]:
        clips, count = self._train, self._candidates
        conditions = clips.batch.select([row for row in rows for _ in range(count)])
        names = [(clips.batch.condition_ids[row], k) for row in rows for k in range(count)]
        keys = [DrawKey(self.config.seed, NOISE, batch, condition=c, candidate=k) for c, k in names]
        with clock("sample"):
            noise = initial_noise(conditions, [generator(key) for key in keys])
            clean = self._sample(conditions, noise, keys, names)
        with clock("decode"):
            videos = self.world.decode(clean)
        with clock("judge"):
            shaped = videos.reshape(len(rows), count, *videos.shape[1:])
            truths = [true_trajectory(clips.conditions[row]) for row in rows]
            judged = judge_videos(self.arm.judge, shaped, truths, 1000 * self.config.seed + batch)
            groups = judged_groups(judged, shaped, clips, rows, batch)
        return build_samples(groups, self.config, batch), groups

    def _sample(
        self,
        conditions: ConditionBatch,
        noise: torch.Tensor,
        keys: Sequence[DrawKey],
        names: Sequence[tuple[str, int]],
    ) -> torch.Tensor:
        """Candidates under the old policy; they stay on the device for the update."""
        if self.method.kind != "flow_grpo":
            latents = sample_candidates(self.world, conditions, policy="old", sigmas=self.sigmas, noise=noise).float()
            self.latents.update(zip(names, latents, strict=True))
            return latents
        sde_keys = [replace(key, purpose="sde_noise") for key in keys]
        kept = sample_trajectories(
            self.world,
            conditions,
            sde_keys,
            noise,
            policy="old",
            sigmas=self.sigmas,
            noise_level=self.arm.setting.noise_level,
        )
        for row, name in enumerate(names):
            part = slice(row, row + 1)
            self.trajectories[name] = Trajectory(kept.latents[part], kept.log_densities[part])
        return kept.clean

    # -- held-out clips --------------------------------------------------------------------------------

    def _heldout_videos(self, conditions: ConditionBatch) -> np.ndarray:
        """uint8 [G, samples, T, h, w, 3] under live, with the same noise for every arm and every occasion."""
        count = self.scale.samples
        repeated = conditions.select([row for row in range(len(conditions)) for _ in range(count)])
        seed = self.config.heldout.seed
        keys = [
            DrawKey(seed, NOISE, 0, condition=c, candidate=k) for c in conditions.condition_ids for k in range(count)
        ]
        noise = initial_noise(repeated, [generator(key) for key in keys])
        latents = sample_candidates(self.world, repeated, policy="live", sigmas=self.sigmas, noise=noise)
        videos = self.world.decode(latents.float())
        return videos.reshape(len(conditions), count, *videos.shape[1:])

    def _evaluate(self, done: int) -> None:
        videos = self._heldout_videos(self.heldout.batch)
        judged = judge_videos(self.arm.judge, videos, self.heldout_truths, 50_000)
        means = judged.referee_scores.mean(axis=1)
        self.curve.append(
            {
                "batches": done,
                "candidates": done * self.config.conditions_per_batch * self._candidates,
                "referee": float(means.mean()),
                "judge": float(judged.scores_GK.mean()),
                "frozen_share": judged.frozen_share,
                "luma": float(np.mean([measure_picture(v[::8])["luma"] for group in videos for v in group])),
                "by_condition": [round(float(m), 2) for m in means],
                "distance": self.world.policies.distance("live", "reference"),
            }
        )
        rewards = [point["judge"] for point in self.curve]
        # A judge that is the referee has no independent one beside it.
        referee = [None if self.arm.judge == "referee" else point["referee"] for point in self.curve]
        self.alarms += [{**alarm, "heldout": True} for alarm in heldout_alarms(rewards, referee, done, self.config)]

    def _final(self) -> dict[str, Any]:
        """The trained policy on the held-out clips in detail, within and beyond the trained length."""
        videos = self._heldout_videos(self.heldout.batch)
        judged = judge_videos("referee", videos, self.heldout_truths, 0)
        flat = [video for group in videos for video in group]
        long_videos = self._heldout_videos(self.heldout.longer(LONG_SLOTS))
        long_truths = [true_trajectory(c, LONG_FRAMES) for c in self.heldout.conditions]
        return {
            "parts": _parts(judged),
            "horizon": _mean_horizon(videos, self.heldout_truths),
            "long_horizon": _mean_horizon(long_videos, long_truths),
            "picture": _means([{**measure_picture(v), **measure_detail(v)} for v in flat]),
            "picture_true": _means(list(self.heldout.pictures)),
            "diversity": float(np.mean([picture_spread(list(group)) for group in videos])),
            "score_deviation": float(judged.referee_scores.std(axis=1).mean()),
        }


def _parts(judged: Judged) -> dict[str, float]:
    """Means of the referee's parts over the videos that have them."""
    reports = [report for row in judged.reports for report in row]
    parts = {name: [getattr(r, name) for r in reports] for name in ("hp", "meter", "position", "readable_share")}
    return {name: float(np.mean([v for v in values if v is not None])) for name, values in parts.items()}


def _mean_horizon(videos: np.ndarray, truths: Sequence[Any]) -> dict[str, list[float]]:
    rows = [horizon(video, truth) for group, truth in zip(videos, truths, strict=True) for video in group]
    return {name: np.mean([row[name] for row in rows], axis=0).round(4).tolist() for name in rows[0]}


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def training_total(scale: Scale, *, tune: bool) -> int:
    """Conditions of a training data set: enough for its longest arm."""
    return scale.conditions * (scale.tune_batches if tune else max(scale.long_batches, scale.batches, TIMED_BATCHES))


def run_arm(arm: Arm, scale: Scale, root: Path, device: torch.device) -> dict[str, Any]:
    """Train and measure one arm.

    Args:
        root: where the data sets lie.

    Returns:
        JSON values, the content of its result file.
    """
    return Run(arm, scale, root, device).run()
