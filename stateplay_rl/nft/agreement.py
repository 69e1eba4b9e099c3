"""Do two judges order the candidates of a group alike?

Shapes: G groups, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations


def _order(left: float, right: float) -> int:
    return (left > right) - (left < right)


def pairwise_agreement(first_GK: Sequence[Sequence[float]], second_GK: Sequence[Sequence[float]]) -> float | None:
    """Share of within-group pairs that two judges order alike; better, worse and tied are three classes.

    Pairs of different groups are never compared: a judge's level may differ from group to group.

    Args:
        first_GK: one judge's scores in points, per group.
        second_GK: the other's, same groups and candidates.

    Returns:
        0..1, or None when there is no pair.

    Raises:
        ValueError: the two do not hold the same groups and candidates.
    """
    agree = pairs = 0
    for first_K, second_K in zip(first_GK, second_GK, strict=True):
        if len(first_K) != len(second_K):
            raise ValueError(f"a group has {len(first_K)} and {len(second_K)} scores")
        for i, j in combinations(range(len(first_K)), 2):
            agree += _order(first_K[i], first_K[j]) == _order(second_K[i], second_K[j])
            pairs += 1
    return agree / pairs if pairs else None
