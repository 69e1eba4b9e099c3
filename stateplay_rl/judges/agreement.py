"""Do two judges agree? Within groups, because only differences inside a group train.

Two judges whose scores rise and fall together from group to group, but who order the candidates of each group
differently, agree in nothing that matters; so every measure here is taken inside groups first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 2000
_SEED = 0

Scores = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Agreement:
    """Two judges on some groups that both judged fully.

    Args:
        name: which groups.
        correlation: of scores after each group's own mean is taken off; None when a judge has no spread at all.
        low, high: 95 % bootstrap interval of `correlation` over groups.
        pairs_alike: share of candidate pairs that both order alike, of those that neither ties.
        pairs_tied: share of pairs that at least one judge ties.
        best_alike: share of groups in which a best candidate of one is a best candidate of the other.
        difference: mean of second minus first, points.
        scatter: deviation of the differences inside groups, points.
    """

    name: str
    groups: int
    candidates: int
    correlation: float | None
    low: float | None
    high: float | None
    pairs_alike: float | None
    pairs_tied: float | None
    best_alike: float | None
    difference: float | None
    scatter: float | None


def agreement(first: Scores, second: Scores, classes: Mapping[str, str]) -> tuple[Agreement, ...]:
    """All common groups together, then each class.

    Args:
        first: full scores by group, in the order of candidates.
        second: the other judge's.
        classes: class by group, where known.
    """
    common = sorted(g for g in first.keys() & second.keys() if len(first[g]) == len(second[g]) > 1)
    rows = [_row("all", [(first[g], second[g]) for g in common])]
    for name in sorted({classes[g] for g in common if g in classes}):
        rows.append(_row(name, [(first[g], second[g]) for g in common if classes.get(g) == name]))
    return tuple(rows)


def _row(name: str, pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Agreement:
    if not pairs:
        return Agreement(name, 0, 0, None, None, None, None, None, None, None, None)
    products = np.array([_products(a, b) for a, b in pairs])
    differences = [np.subtract(b, a) for a, b in pairs]
    alike = opposed = tied = best = 0
    for a, b in pairs:
        best += bool(_best(a) & _best(b))
        for i in range(len(a)):
            for j in range(i):
                sign = np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])
                alike, opposed, tied = alike + (sign > 0), opposed + (sign < 0), tied + (sign == 0)
    low, high = _interval(products)
    freedom = sum(len(d) - 1 for d in differences)
    return Agreement(
        name=name,
        groups=len(pairs),
        candidates=sum(len(a) for a, _ in pairs),
        correlation=_correlation(products.sum(axis=0)),
        low=low,
        high=high,
        pairs_alike=float(alike / (alike + opposed)) if alike + opposed else None,
        pairs_tied=float(tied / (alike + opposed + tied)),
        best_alike=best / len(pairs),
        difference=float(np.mean(np.concatenate(differences))),
        scatter=float(np.sqrt(sum(float(((d - d.mean()) ** 2).sum()) for d in differences) / freedom)),
    )


def _products(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Sums of xx, yy and xy inside one group, its means taken off."""
    x, y = np.asarray(a) - np.mean(a), np.asarray(b) - np.mean(b)
    return float(x @ x), float(y @ y), float(x @ y)


def _correlation(sums: np.ndarray) -> float | None:
    xx, yy, xy = (float(value) for value in sums)
    # Equal scores leave a rounding residue of about 1e-26, which is no spread.
    return xy / float(np.sqrt(xx * yy)) if min(xx, yy) > 1e-12 else None


def _interval(products_G3: np.ndarray) -> tuple[float | None, float | None]:
    """Percentile bootstrap over groups."""
    count = len(products_G3)
    if count < 2:
        return None, None
    rng = np.random.default_rng(_SEED)
    sums = np.stack([products_G3[rng.integers(0, count, count)].sum(axis=0) for _ in range(_RESAMPLES)])
    xx, yy, xy = sums.T
    usable = np.minimum(xx, yy) > 1e-12
    if usable.sum() < _RESAMPLES // 2:
        return None, None
    values = xy[usable] / np.sqrt(xx[usable] * yy[usable])
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _best(scores: Sequence[float]) -> set[int]:
    return {i for i, score in enumerate(scores) if score == max(scores)}
