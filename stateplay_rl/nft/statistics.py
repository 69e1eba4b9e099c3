"""Means over conditions with bootstrap intervals over clusters of conditions.

Conditions are the units of a mean, clusters (near-duplicate conditions) the independent units of its spread.
Every condition counts once, so the mean of paired differences is the difference of the two means exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

RESAMPLES = 10_000
_RESAMPLES_AT_ONCE = 1_000
"""Draws held in memory together: it stays flat for thousands of clusters."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % percentile bootstrap interval.

    Args:
        mean: mean over conditions.
        low, high: the interval's ends; None when one cluster leaves nothing to resample.
        clusters: independent units behind it.
    """

    mean: float
    low: float | None
    high: float | None
    clusters: int

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low is not None and self.low > 0

    @property
    def below_zero(self) -> bool:
        """Whether the whole interval lies below 0."""
        return self.high is not None and self.high < 0


def bootstrap_mean(clusters: Sequence[Sequence[float]], *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Mean over all conditions, and the 2.5 and 97.5 percentiles over clusters drawn with replacement.

    Args:
        clusters: per cluster the values of its conditions.
        seed: seed of the resampling; equal seeds give equal intervals.
        resamples: bootstrap draws.

    Raises:
        ValueError: no cluster, an empty one, or a value that is not finite.
    """
    if not clusters or any(len(cluster) == 0 for cluster in clusters):
        raise ValueError("a bootstrap needs at least one cluster and no empty one")
    sums_N = torch.tensor([sum(cluster) for cluster in clusters], dtype=torch.float64)
    counts_N = torch.tensor([len(cluster) for cluster in clusters], dtype=torch.float64)
    if not bool(torch.isfinite(sums_N).all()):
        raise ValueError("a bootstrap needs finite values")
    mean = float(sums_N.sum() / counts_N.sum())
    if len(clusters) == 1:
        return Interval(mean, None, None, 1)
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for start in range(0, resamples, _RESAMPLES_AT_ONCE):
        rows = min(_RESAMPLES_AT_ONCE, resamples - start)
        draws_RN = torch.randint(len(clusters), (rows, len(clusters)), generator=generator)
        parts.append(sums_N[draws_RN].sum(dim=1) / counts_N[draws_RN].sum(dim=1))
    ends = torch.quantile(torch.cat(parts), torch.tensor([0.025, 0.975], dtype=torch.float64))
    low, high = ends.tolist()
    return Interval(mean, low, high, len(clusters))


def bootstrap_conditions(
    values: Mapping[str, float],
    cluster_of: Mapping[str, object] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval | None:
    """`bootstrap_mean` of one value per condition; None without any condition.

    Args:
        values: a number per condition id.
        cluster_of: cluster of each condition; a condition without one is its own.
        seed, resamples: as in `bootstrap_mean`.

    Raises:
        ValueError: a value that is not finite.
    """
    if not values:
        return None
    grouped: dict[object, list[float]] = {}
    for condition in sorted(values):
        cluster = (cluster_of or {}).get(condition, ("own", condition))
        grouped.setdefault(cluster, []).append(values[condition])
    return bootstrap_mean(list(grouped.values()), seed=seed, resamples=resamples)


def paired_differences(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> dict[str, float]:
    """after - before of every condition that has a value on both sides, sorted by condition.

    Pairing takes the differences between conditions, usually the largest part of the spread, out.
    """
    both: dict[str, float] = {}
    for condition in sorted(set(before) & set(after)):
        first, last = before[condition], after[condition]
        if first is not None and last is not None:
            both[condition] = last - first
    return both
