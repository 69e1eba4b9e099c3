"""The line of `metrics.jsonl` that every batch writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.nft.old_policy import Decay, weight_on_old
from stateplay_rl.stages.train_nft.heldout import referee_mean
from stateplay_rl.stages.train_nft.samples import BatchSamples, JudgedGroup
from stateplay_rl.stages.train_nft.update import UpdateStats
from stateplay_rl.worlds.base import World

PICTURE = ("luma", "saturation", "motion")


@dataclass(frozen=True)
class Counters:
    """Where a batch stands: its number, its stage, and the run's counters after it."""

    batch: int
    stage: str
    optimizer_steps: int
    candidates_seen: int


def batch_metrics(
    groups: Sequence[JudgedGroup],
    samples: BatchSamples,
    stats: UpdateStats,
    world: World,
    config: TrainNftConfig,
    counters: Counters,
) -> dict[str, Any]:
    """One batch's line; times are elsewhere, so that the line can be reproduced."""
    return {
        "batch": counters.batch,
        "stage": counters.stage,
        "optimizer_steps": counters.optimizer_steps,
        "candidates_seen": counters.candidates_seen,
        **_rewards(groups, samples),
        **_update(stats),
        "gating": config.loss.gating,
        "deviation": config.loss.deviation,
        "off_policy": config.off_policy,
        "distance_live_old": world.policies.distance("live", "old"),
        "distance_live_reference": world.policies.distance("live", "reference"),
        "eta": weight_on_old(counters.optimizer_steps, Decay(config.old_policy.slope, config.old_policy.maximum)),
        "diversity": _mean([g.picture["diversity"] for g in groups]),
        "picture": _picture([g.picture for g in groups]),
        "picture_real": _picture([g.picture_real for g in groups if g.picture_real is not None]),
        "velocity_ratio_reference": None,
        "sampler_mismatch": None,
        "details": None,
        "signal_cosine": None,
        "audit": None,
    }


def _rewards(groups: Sequence[JudgedGroup], samples: BatchSamples) -> dict[str, Any]:
    judged = [g for g in groups if g.reason is None]
    scores = [float(s) for g in judged for s in g.scores if s is not None]
    optimality = samples.optimality.optimality
    return {
        "groups": len(groups),
        "groups_tied": int(optimality.tied_G.sum()),
        "groups_gated": sum(not trains for trains in samples.optimality.gate.trains),
        "groups_failed": len(groups) - len(judged),
        "reward_mean": _mean(scores),
        "reward_by_class": _by_class(judged),
        "referee_mean": referee_mean(groups),
        "std_within": _mean([_deviation([s for s in g.scores if s is not None]) for g in judged]),
        "std_batch": _deviation(scores) if scores else None,
        "scores_at_0": _mean([float(s == 0.0) for s in scores]),
        "scores_at_100": _mean([float(s == 100.0) for s in scores]),
        "r_histogram": samples.r_histogram(),
        "r_reach": max((abs(s.r - 0.5) for s in samples.samples), default=None),
    }


def _update(stats: UpdateStats) -> dict[str, Any]:
    return {
        "loss": stats.sums.means(),
        "loss_by_sigma": stats.sums.by_sigma(),
        "grad_norm": stats.mean(stats.norm_sums),
        "update_ratio": stats.mean(stats.ratio_sums),
        "zero_gradient_share": stats.zero_share_sum / max(stats.applied_steps, 1),
        "applied_steps": stats.applied_steps,
        "skipped_steps": stats.skipped_steps,
        "skipped_because": list(stats.skipped_because),
    }


def _by_class(judged: Sequence[JudgedGroup]) -> dict[str, float]:
    by_class: dict[str, list[float]] = defaultdict(list)
    for group in judged:
        by_class[group.mechanics_class].extend(s for s in group.scores if s is not None)
    return {name: sum(v) / len(v) for name, v in sorted(by_class.items())}


def _picture(rows: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    if not rows:
        return None
    return {name: sum(r[name] for r in rows) / len(rows) for name in PICTURE}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return float((sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5)
