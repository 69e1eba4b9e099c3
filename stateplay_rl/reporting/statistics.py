"""Bootstrap intervals of paired differences (`evaluation`: bootstrap over clusters of conditions)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
BOOTSTRAP_SEED = 20_251


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval; `low` and `high` are None when one unit leaves nothing to resample."""

    mean: float
    low: float | None
    high: float | None
    units: int

    @property
    def above_zero(self) -> bool:
        return self.low is not None and self.low > 0

    @property
    def below_zero(self) -> bool:
        return self.high is not None and self.high < 0


def paired_differences(
    before: Mapping[str, float | None], after: Mapping[str, float | None]
) -> dict[str, float]:
    """after - before for each condition that has a score in both, sorted by condition."""
    both: dict[str, float] = {}
    for condition_id in sorted(set(before) & set(after)):
        first, last = before[condition_id], after[condition_id]
        if first is not None and last is not None:
            both[condition_id] = last - first
    return both


def bootstrap_mean(
    differences: Mapping[str, float], clusters: Mapping[str, int] | None = None, resamples: int = RESAMPLES
) -> Interval | None:
    """Mean over conditions and its percentile interval under resampling of whole clusters.

    Args:
        differences: one number per condition id.
        clusters: cluster of each condition; conditions without one count as their own cluster.
        resamples: number of bootstrap samples; the generator's seed is fixed, so results repeat.

    Returns:
        None if there is no condition.
    """
    if not differences:
        return None
    members: dict[object, list[float]] = {}
    for condition_id, value in differences.items():
        members.setdefault((clusters or {}).get(condition_id, condition_id), []).append(value)
    sums = np.array([sum(values) for values in members.values()], dtype=np.float64)
    counts = np.array([len(values) for values in members.values()], dtype=np.float64)
    centre = float(sums.sum() / counts.sum())
    if len(members) < 2:
        return Interval(centre, None, None, len(members))
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    means = np.empty(resamples, dtype=np.float64)
    for start in range(0, resamples, 1000):  # in pieces: memory stays flat for thousands of clusters
        picks = generator.integers(0, len(members), size=(min(1000, resamples - start), len(members)))
        means[start : start + len(picks)] = sums[picks].sum(axis=1) / counts[picks].sum(axis=1)
    low, high = (float(end) for end in np.percentile(means, [2.5, 97.5]))
    return Interval(centre, low, high, len(members))


def histogram(values: Sequence[float], edges: Sequence[float]) -> tuple[int, ...]:
    """Counts per bin; the last bin includes its right edge."""
    counts, _ = np.histogram(np.asarray(values, dtype=np.float64), bins=np.asarray(edges, dtype=np.float64))
    return tuple(int(count) for count in counts)
