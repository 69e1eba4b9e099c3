"""From a batch's verdicts to the samples that train: scores, optimality, gating.

Shapes: G groups, K candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.nft.advantage import BatchOptimality, batch_optimality, gate
from stateplay_rl.nft.randomness import DrawKey, permutation

SHUFFLED = "control_shuffle"
HISTOGRAM_BINS = 10


@dataclass(frozen=True)
class JudgedGroup:
    """A finished group: scores in points (None where the judgement failed), verdict line, picture measures.

    `audit` and `referee` are the lines of judges whose scores never train; None where there is none.
    """

    group_id: str
    condition_id: str
    mechanics_class: str
    latent_frames: int
    scores: tuple[float | None, ...]
    reason: str | None
    line: Mapping[str, Any]
    picture: Mapping[str, float]
    picture_real: Mapping[str, float] | None
    audit: Mapping[str, Any] | None = None
    referee: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Sample:
    """One candidate that trains, with its optimality r in [0, 1]."""

    group_id: str
    condition_id: str
    candidate: int
    r: float
    latent_frames: int


@dataclass(frozen=True)
class BatchSamples:
    """The samples of a batch in a fixed order, and what gating left out."""

    samples: tuple[Sample, ...]
    optimality: BatchOptimality
    scores_used: tuple[tuple[float | None, ...], ...]

    def r_histogram(self) -> list[int]:
        """Counts of r in ten equal bins over the samples that train."""
        values = torch.tensor([s.r for s in self.samples], dtype=torch.float64)
        return [int(v) for v in torch.histc(values, bins=HISTOGRAM_BINS, min=0.0, max=1.0)]


def _control(scores: Sequence[float | None], config: TrainNftConfig, batch: int, condition: str) -> list[float | None]:
    """Scores as they train: unchanged, or permuted within the group (same spread, no information)."""
    if config.control == "none":
        return list(scores)
    order = permutation(DrawKey(config.seed, SHUFFLED, batch=batch, condition=condition), len(scores))
    return [scores[i] for i in order]


def build_samples(groups: Sequence[JudgedGroup], config: TrainNftConfig, batch: int) -> BatchSamples:
    """Optimality of every judged group and the samples of those that pass the gate."""
    used = [_control(g.scores, config, batch, g.condition_id) for g in groups]
    batch_gate = gate(
        used,
        config.loss.gating,
        candidates=config.sampling.candidates,
        min_spread_points=config.loss.guard_spread_points,
        min_best_points=config.loss.guard_best_points,
    )
    result = batch_optimality(
        used,
        batch_gate=batch_gate,
        advantage_clip=config.loss.advantage_clip,
        std_floor_points=config.loss.std_floor_points,
        deviation_of=config.loss.deviation,
    )
    samples = tuple(
        Sample(group.group_id, group.condition_id, candidate, r, group.latent_frames)
        for index, group in enumerate(groups)
        if batch_gate.trains[index]
        for candidate, r in enumerate(result.r(index))
    )
    return BatchSamples(samples, result, tuple(tuple(row) for row in used))


def plan_steps(samples: Sequence[Sample], config: TrainNftConfig, batch: int) -> list[list[Sample]]:
    """The optimizer steps of a batch: per pass a keyed shuffle, cut into global steps; the last may be smaller.

    The plan is made from the whole batch, so it is the same on every rank and for every number of ranks.
    """
    steps: list[list[Sample]] = []
    size = config.optimizer.samples_per_step
    for inner_pass in range(config.optimizer.inner_epochs):
        order = permutation(DrawKey(config.seed, "shuffle", batch=batch, inner_pass=inner_pass), len(samples))
        shuffled = [samples[i] for i in order]
        steps.extend(shuffled[start : start + size] for start in range(0, len(shuffled), size))
    return steps
