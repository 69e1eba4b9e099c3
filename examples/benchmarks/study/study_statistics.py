"""Gains and efficiencies with intervals: seeds and held-out conditions are both drawn with replacement.

Shapes: S seeds, P points of a curve, N held-out conditions, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000


@dataclass(frozen=True)
class Curves:
    """A method's held-out scores: candidates seen [P] (the same for all seeds), points [S, P, N]."""

    candidates_P: np.ndarray
    scores_SPN: np.ndarray

    def gains(self, candidates: int) -> np.ndarray:
        """Gain [S, N] over the start after so many candidates, in points.

        Raises:
            ValueError: the curve has no such point.
        """
        at = np.flatnonzero(self.candidates_P == candidates)
        if len(at) != 1:
            raise ValueError(f"no evaluation after {candidates} candidates: {self.candidates_P.tolist()}")
        gains: np.ndarray = self.scores_SPN[:, at[0]] - self.scores_SPN[:, 0]
        return gains


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % percentile interval; an end that is not known is infinite."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 1, sign: bool = True) -> str:
        """As it stands in tables."""
        form = f"{'+' if sign else ''}.{digits}f"
        return f"{self.value:{form}} [{_shown(self.low, form)}, {_shown(self.high, form)}]"


def _shown(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"


def _draws(seeds: int, conditions: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(seeds, size=seeds), rng.integers(conditions, size=conditions)


def mean_gain(gains_SN: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Mean over seeds and conditions; with one seed the interval is over conditions alone."""
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    for r in range(resamples):
        s, n = _draws(*gains_SN.shape, rng)
        means[r] = gains_SN[s][:, n].mean()
    low, high = np.percentile(means, (2.5, 97.5))
    return Estimate(float(gains_SN.mean()), float(low), float(high))


def difference(one_SN: np.ndarray, two_SN: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Mean of one minus mean of two, paired: equal seeds mean equal training clips, held-out conditions are the same.

    Raises:
        ValueError: other seeds or conditions.
    """
    if one_SN.shape != two_SN.shape:
        raise ValueError(f"gains of {one_SN.shape} and {two_SN.shape} are not of the same seeds and conditions")
    return mean_gain(one_SN - two_SN, seed=seed, resamples=resamples)


def crossing(candidates_P: np.ndarray, gains_P: np.ndarray, level: float) -> float:
    """Candidates at which a curve first reaches a gain, linear between evaluations; infinite if it never does."""
    above = np.flatnonzero(gains_P >= level)
    if not len(above):
        return math.inf
    at = int(above[0])
    if at == 0:
        return float(candidates_P[0])
    left, right = gains_P[at - 1], gains_P[at]
    share = (level - left) / (right - left)
    return float(candidates_P[at - 1] + share * (candidates_P[at] - candidates_P[at - 1]))


def _mean_gains(scores_SPN: np.ndarray) -> np.ndarray:
    means_P: np.ndarray = scores_SPN.mean(axis=(0, 2))
    return means_P - means_P[0]


@dataclass(frozen=True)
class Efficiency:
    """How many times the candidates of `one` the method `two` needs for the same gain.

    Args:
        level: the gain, points.
        one, two: candidates to get there.
        ratio: two / one.
        two_never: share of the resamples in which `two` does not get there within its budget.
    """

    level: float
    one: float
    two: float
    ratio: Estimate
    two_never: float


def efficiency(
    one: Curves, two: Curves, level: float, *, seed: int = 0, resamples: int = RESAMPLES
) -> Efficiency | None:
    """Ratio of the candidates to a gain; None where `one` does not reach it."""
    first = crossing(one.candidates_P, _mean_gains(one.scores_SPN), level)
    second = crossing(two.candidates_P, _mean_gains(two.scores_SPN), level)
    if not math.isfinite(first):
        return None
    rng = np.random.default_rng(seed)
    ratios = np.empty(resamples)
    for r in range(resamples):
        s, n = _draws(len(one.scores_SPN), one.scores_SPN.shape[2], rng)
        other = rng.integers(len(two.scores_SPN), size=len(two.scores_SPN))
        fast = crossing(one.candidates_P, _mean_gains(one.scores_SPN[s][:, :, n]), level)
        slow = crossing(two.candidates_P, _mean_gains(two.scores_SPN[other][:, :, n]), level)
        # Where neither gets there nothing is known of their ratio.
        ratios[r] = slow / fast if math.isfinite(fast) else 0.0 if math.isfinite(slow) else math.nan
    known = np.sort(ratios[~np.isnan(ratios)])
    # Percentiles by rank: no interpolation with an infinite neighbour.
    low, high = (float(known[round(q * (len(known) - 1))]) for q in (0.025, 0.975))
    return Efficiency(level, first, second, Estimate(second / first, low, high), float(np.isinf(known).mean()))


def stacked(curves: Sequence[Sequence[dict[str, object]]]) -> Curves:
    """Curves of several seeds, at the points that all of them have."""
    common = sorted(set.intersection(*({int(str(p["candidates"])) for p in curve} for curve in curves)))
    rows = []
    for curve in curves:
        by_candidates = {int(str(p["candidates"])): p["by_condition"] for p in curve}
        rows.append([by_candidates[c] for c in common])
    return Curves(np.array(common), np.array(rows, dtype=np.float64))
