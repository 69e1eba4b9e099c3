"""Do two judges order the candidates of a group alike? The same definition as the student's gate.

Shapes: G groups, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations


def _order(left: float, right: float, tie_points: int) -> int:
    gap = round(left) - round(right)
    return 0 if abs(gap) <= tie_points else (1 if gap > 0 else -1)


def pairwise_agreement(
    judge_GK: Sequence[Sequence[float]], student_GK: Sequence[Sequence[float] | None], tie_points: int = 0
) -> float | None:
    """Share of within-group pairs that two judges order alike; better, worse and tied are three classes.

    Pairs of different groups are never compared: a judge's level may differ from group to group. Scores are rounded to
    points (half to even), as the student's targets are.

    Args:
        judge_GK: one judge's scores in points, per group.
        student_GK: the other's, same groups and candidates; None for a group without an answer: it agrees on no pair.
        tie_points: scores that are no further apart are tied.

    Returns:
        0..1, or None when there is no pair.

    Raises:
        ValueError: the two do not hold the same groups and candidates.
    """
    agree = pairs = 0
    for judge_K, student_K in zip(judge_GK, student_GK, strict=True):
        if student_K is not None and len(judge_K) != len(student_K):
            raise ValueError(f"a group has {len(judge_K)} and {len(student_K)} scores")
        for i, j in combinations(range(len(judge_K)), 2):
            pairs += 1
            if student_K is not None:
                alike = _order(judge_K[i], judge_K[j], tie_points) == _order(student_K[i], student_K[j], tie_points)
                agree += alike
    return agree / pairs if pairs else None
