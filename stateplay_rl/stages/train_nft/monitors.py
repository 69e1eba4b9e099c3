"""What every batch logs, and which of it is an alarm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.nft.forward import without_condition_slot
from stateplay_rl.nft.old_policy import Decay, weight_on_old
from stateplay_rl.stages.train_nft.objective import Objective, Visit
from stateplay_rl.stages.train_nft.samples import BatchSamples, JudgedGroup
from stateplay_rl.stages.train_nft.update import UpdateStats
from stateplay_rl.worlds.base import World


def batch_metrics(
    groups: Sequence[JudgedGroup],
    samples: BatchSamples,
    stats: UpdateStats,
    world: World,
    config: TrainNftConfig,
    *,
    batch: int,
    optimizer_steps: int,
    candidates_seen: int,
) -> dict[str, Any]:
    """The line of `metrics.jsonl` for one batch; times are elsewhere, so that the line can be reproduced."""
    judged = [g for g in groups if g.reason is None]
    scores = [float(s) for g in judged for s in g.scores if s is not None]
    optimality = samples.optimality.optimality
    return {
        "batch": batch,
        "optimizer_steps": optimizer_steps,
        "candidates_seen": candidates_seen,
        "groups": len(groups),
        "groups_tied": int(optimality.tied_G.sum()),
        "groups_gated": sum(not trains for trains in samples.optimality.gate.trains),
        "groups_failed": len(groups) - len(judged),
        "reward_mean": _mean(scores),
        "reward_by_class": _by_class(judged),
        "std_within": _mean([_deviation([s for s in g.scores if s is not None]) for g in judged]),
        "std_batch": _deviation(scores) if scores else None,
        "scores_at_0": _mean([float(s == 0.0) for s in scores]),
        "scores_at_100": _mean([float(s == 100.0) for s in scores]),
        "r_histogram": samples.r_histogram(),
        "loss": stats.sums.means(),
        "loss_by_sigma": stats.sums.by_sigma(),
        "grad_norm": stats.mean(stats.norm_sums),
        "update_ratio": stats.mean(stats.ratio_sums),
        "zero_gradient_share": stats.zero_share_sum / max(stats.applied_steps, 1),
        "off_policy": config.off_policy,
        "skipped_steps": stats.skipped_steps,
        "skipped_because": list(stats.skipped_because),
        "distance_live_old": world.policies.distance("live", "old"),
        "distance_live_reference": world.policies.distance("live", "reference"),
        "eta": weight_on_old(optimizer_steps, Decay(config.old_policy.slope, config.old_policy.maximum)),
        "diversity": _mean([g.picture["diversity"] for g in groups]),
        "picture": _picture([g.picture for g in groups]),
        "picture_real": _picture([g.picture_real for g in groups if g.picture_real is not None]),
        "velocity_ratio_reference": None,
        "sampler_mismatch": None,
        "signal_cosine": None,
    }


@torch.no_grad()
def velocity_details(objective: Objective, samples: BatchSamples, batch: int) -> dict[str, float]:
    """On one fixed sample: ||v_live|| / ||v_reference||, and trainer's against sampler's v on the same input."""
    sample = min(samples.samples, key=lambda s: (s.condition_id, s.candidate))
    prepared = objective.prepare([sample], Visit(batch, 0, anchors=False), None)
    noised, conditions, world = prepared.sample, prepared.conditions, objective.world
    v_live = world.velocity(noised.x_sigma, noised.sigma_B, conditions).velocity_BCfHW
    with world.policies.use("reference"):
        v_reference = world.velocity(noised.x_sigma, noised.sigma_B, conditions).velocity_BCfHW
    # The sampler computes states once and evaluates several candidates in one call.
    repeated = conditions.select([0, 0])
    states = world.states(repeated)
    v_sampler = world.velocity(
        noised.x_sigma.expand(2, *noised.x_sigma.shape[1:]), noised.sigma_B.expand(2), repeated, states
    ).velocity_BCfHW[:1]
    return {
        "velocity_ratio_reference": _norm(v_live) / _norm(v_reference),
        "sampler_mismatch": _norm(v_live.float() - v_sampler.float()) / _norm(v_live),
    }


def _norm(velocity_BCfHW: Tensor) -> float:
    return float(without_condition_slot(velocity_BCfHW).double().norm())


def alarms_of(line: Mapping[str, Any], first: Mapping[str, Any] | None, config: TrainNftConfig) -> list[dict[str, Any]]:
    """Thresholds that a batch's metrics cross; `first` is the run's first line (for drifts), None at the start."""
    m = config.monitors
    groups = max(line["groups"], 1)
    found: list[dict[str, Any]] = []

    def check(name: str, value: float | None, threshold: float, crossed: bool, severity: str, message: str) -> None:
        if value is not None and crossed:
            found.append(
                {
                    "batch": line["batch"],
                    "name": name,
                    "value": value,
                    "threshold": threshold,
                    "severity": severity,
                    "message": message,
                }
            )

    failed, tied = line["groups_failed"] / groups, line["groups_tied"] / groups
    check("failed_groups", failed, m.failed_share, failed > m.failed_share, "alarm", "many judgements failed")
    check("tied_groups", tied, m.tied_share, tied > m.tied_share, "warning", "the judge ties most groups")
    for name in ("scores_at_0", "scores_at_100"):
        share = line[name]
        over = share is not None and share > m.saturated_share
        check(name, share, m.saturated_share, over, "warning", "scores pile up at one end of the scale")
    ratio = line["velocity_ratio_reference"]
    over = ratio is not None and ratio >= m.velocity_ratio
    check(
        "velocity_ratio",
        ratio,
        m.velocity_ratio,
        over,
        "warning",
        "live velocities grow against the SFT model's",
    )
    distance = line["distance_live_reference"]
    still = line["optimizer_steps"] > 0 and distance == 0.0
    check("live_equals_reference", distance, 0.0, still, "alarm", "steps were applied and nothing moved")
    _picture_alarms(line, first, config, check)
    return found


def _picture_alarms(
    line: Mapping[str, Any], first: Mapping[str, Any] | None, config: TrainNftConfig, check: Any
) -> None:
    m, real, picture = config.monitors, line["picture_real"], line["picture"]
    if real is not None and picture is not None:
        motion = picture["motion"] / max(real["motion"], 1e-6)
        check(
            "motion",
            motion,
            m.motion_ratio,
            motion < m.motion_ratio,
            "alarm",
            "videos move less than real clips",
        )
        shift = abs(picture["luma"] - real["luma"])
        check(
            "luma",
            shift,
            m.luma_shift,
            shift > m.luma_shift,
            "alarm",
            "brightness departs from the real clips",
        )
    if first is not None and first["diversity"]:
        kept = line["diversity"] / first["diversity"]
        check(
            "diversity",
            kept,
            m.diversity_ratio,
            kept < m.diversity_ratio,
            "warning",
            "candidates become alike",
        )


def heldout_alarm(rewards: Sequence[float], batches_done: int, config: TrainNftConfig) -> dict[str, Any] | None:
    """The held-out reward fell well below its best."""
    drop = max(rewards) - rewards[-1]
    if drop <= config.monitors.heldout_drop_points:
        return None
    return {
        "batch": max(batches_done - 1, 0),
        "name": "heldout_drop",
        "value": drop,
        "threshold": config.monitors.heldout_drop_points,
        "severity": "alarm",
        "message": f"held-out reward is {drop:.1f} points below its best",
    }


def _by_class(judged: Sequence[JudgedGroup]) -> dict[str, float]:
    by_class: dict[str, list[float]] = defaultdict(list)
    for group in judged:
        by_class[group.mechanics_class].extend(s for s in group.scores if s is not None)
    return {name: sum(v) / len(v) for name, v in sorted(by_class.items())}


def _picture(rows: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    if not rows:
        return None
    return {name: sum(r[name] for r in rows) / len(rows) for name in ("luma", "saturation", "motion")}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return float((sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5)
