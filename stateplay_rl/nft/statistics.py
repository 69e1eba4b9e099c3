"""Means with bootstrap intervals over clusters: conditions are the independent units, not their samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

RESAMPLES = 4000


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % percentile bootstrap interval; `clusters` independent units stand behind it."""

    mean: float
    low: float
    high: float
    clusters: int


def bootstrap_mean(
    clusters: Sequence[Sequence[float]], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Mean of the cluster means, and the 2.5 and 97.5 percentiles over clusters drawn with replacement.

    Every cluster counts once, however many samples it holds. With one cluster the interval is its mean: no
    spread between clusters can be seen, which `clusters` says.

    Args:
        clusters: values of each condition (or of each group of near-duplicate conditions).
        seed: seed of the resampling; equal seeds give equal intervals.
        resamples: bootstrap draws.

    Raises:
        ValueError: no cluster, an empty one, or a value that is not finite.
    """
    if not clusters or any(len(c) == 0 for c in clusters):
        raise ValueError("a bootstrap needs at least one cluster and no empty one")
    means_N = torch.tensor([sum(c) / len(c) for c in clusters], dtype=torch.float64)
    if not bool(torch.isfinite(means_N).all()):
        raise ValueError("a bootstrap needs finite values")
    generator = torch.Generator().manual_seed(seed)
    draws_RN = torch.randint(len(means_N), (resamples, len(means_N)), generator=generator)
    resampled_R = means_N[draws_RN].mean(dim=1)
    low, high = torch.quantile(resampled_R, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(mean=float(means_N.mean()), low=low, high=high, clusters=len(means_N))


def paired_difference(
    before: Mapping[str, Sequence[float]],
    after: Mapping[str, Sequence[float]],
    *,
    cluster_of: Mapping[str, object] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Mean of after - before over conditions judged both times, with its interval over clusters.

    Pairing by condition takes the differences between conditions, usually the largest part of the spread,
    out.

    Args:
        before, after: scores in points by condition id; both must hold the same conditions.
        cluster_of: cluster of each condition; without it each condition is its own.

    Raises:
        ValueError: other conditions before than after, or none.
    """
    if set(before) != set(after):
        missing = sorted(set(before) ^ set(after))
        raise ValueError(f"a paired difference needs the same conditions; unpaired: {missing[:5]}")
    grouped: dict[object, list[float]] = {}
    for condition in sorted(before):
        a, b = before[condition], after[condition]
        if not a or not b:
            raise ValueError(f"condition {condition} has no score on one side")
        key = condition if cluster_of is None else cluster_of[condition]
        grouped.setdefault(key, []).append(sum(b) / len(b) - sum(a) / len(a))
    return bootstrap_mean(list(grouped.values()), seed=seed, resamples=resamples)
