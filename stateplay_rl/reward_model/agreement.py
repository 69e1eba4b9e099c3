"""How well the student's scores agree with the judge's, inside groups. Pure mathematics on points.

Shapes: G groups, K candidates of a group (may differ between groups, at least 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

Scores = Sequence[float]


@dataclass(frozen=True)
class Judged:
    """One group with both scores.

    Args:
        cluster: the condition's cluster; resampling takes whole clusters.
        judge: points by stored candidate.
        student: the same from the student; None when its answer did not parse.
        order: stored candidate at each position shown.
    """

    group_id: str
    cluster: int
    mechanics_class: str
    judge: tuple[float, ...]
    student: tuple[float, ...] | None
    order: tuple[int, ...]


@dataclass(frozen=True)
class GroupAgreement:
    """Measures of one group; sums and counts, so that they can be added up. A failed parse agrees with nothing.

    Args:
        pairs, agreed: pairs of candidates, and those with the same sign of difference (a tie is a sign of its own).
        top, bottom: whether the student's best (worst) is one of the judge's best (worst), 0..1.
        spearman: rank correlation, None where either side has one value only.
        absolute_error: mean absolute difference in points, None without an answer.
        spread: whether the judge's scores differ at all: top, bottom and ranks mean nothing without.
    """

    pairs: int
    agreed: int
    top: float
    bottom: float
    spearman: float | None
    absolute_error: float | None
    spread: bool


def pair_sign(a: float, b: float, tie_points: int) -> int:
    """1, 0 or -1 for a > b, a tie, a < b, on scores rounded to points (half to even)."""
    gap = round(a) - round(b)
    return 0 if abs(gap) <= tie_points else (1 if gap > 0 else -1)


def agreement_of(judge: Scores, student: Scores | None, tie_points: int = 0) -> GroupAgreement:
    """Measures of one group."""
    pairs = list(combinations(range(len(judge)), 2))
    spread = len({round(value) for value in judge}) > 1
    if student is None:
        return GroupAgreement(len(pairs), 0, 0.0, 0.0, 0.0 if spread else None, None, spread)
    agreed = sum(
        pair_sign(judge[a], judge[b], tie_points) == pair_sign(student[a], student[b], tie_points) for a, b in pairs
    )
    return GroupAgreement(
        len(pairs),
        agreed,
        _extreme(judge, student, max),
        _extreme(judge, student, min),
        spearman(judge, student) if spread else None,
        fmean(abs(a - b) for a, b in zip(judge, student, strict=True)),
        spread,
    )


def _extreme(judge: Scores, student: Scores, pick: Callable[[list[int]], int]) -> float:
    """Share of the student's extreme candidates that are the judge's, too: a tie at the top is no free hit."""
    theirs, ours = [round(x) for x in judge], [round(x) for x in student]
    best = {k for k, value in enumerate(theirs) if value == pick(theirs)}
    chosen = [k for k, value in enumerate(ours) if value == pick(ours)]
    return fmean(float(k in best) for k in chosen)


def spearman(a: Scores, b: Scores) -> float:
    """Rank correlation with mean ranks for ties; 0 where `b` has one value only (it ranks nothing)."""
    ranks = [_ranks(np.rint(np.asarray(x, np.float64))) for x in (a, b)]
    centred = [x - x.mean() for x in ranks]
    norm = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return 0.0 if norm == 0.0 else float((centred[0] * centred[1]).sum() / norm)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    below = (values[None] < values[:, None]).sum(1)
    equal = (values[None] == values[:, None]).sum(1)
    return np.asarray(below + (equal - 1) / 2.0, np.float64)


def summarise(groups: Sequence[Judged], tie_points: int = 0) -> dict[str, float | int | None]:
    """Measures over groups; None where nothing can be measured.

    `pairwise_agreement` is a share of pairs; top, bottom and Spearman are means over groups whose judge scores differ;
    MAE is over groups with an answer.
    """
    found = [agreement_of(group.judge, group.student, tie_points) for group in groups]
    spread = [f for f in found if f.spread]
    return {
        "groups": len(groups),
        "pairs": sum(f.pairs for f in found),
        "pairwise_agreement": _share(sum(f.agreed for f in found), sum(f.pairs for f in found)),
        "top_agreement": _mean([f.top for f in spread]),
        "bottom_agreement": _mean([f.bottom for f in spread]),
        "spearman": _mean([f.spearman for f in spread if f.spearman is not None]),
        "mae_points": _mean([f.absolute_error for f in found if f.absolute_error is not None]),
        "parse_failures": sum(group.student is None for group in groups),
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


@dataclass(frozen=True)
class Interval:
    """A bootstrap interval."""

    low: float
    high: float


def cluster_interval(
    groups: Sequence[Judged], *, tie_points: int, confidence: float, resamples: int, seed: int
) -> Interval | None:
    """Percentile interval of the pairwise agreement when whole clusters are drawn again; None below two clusters."""
    counts: dict[int, list[int]] = {}
    for group in groups:
        found = agreement_of(group.judge, group.student, tie_points)
        held = counts.setdefault(group.cluster, [0, 0])
        held[0] += found.agreed
        held[1] += found.pairs
    table_C2 = np.array([counts[cluster] for cluster in sorted(counts)], np.float64)
    if len(table_C2) < 2 or table_C2[:, 1].sum() == 0:
        return None
    draws = np.random.default_rng(seed).integers(len(table_C2), size=(resamples, len(table_C2)))
    sums_R2 = table_C2[draws].sum(axis=1)
    shares = sums_R2[:, 0] / np.maximum(sums_R2[:, 1], 1.0)
    low, high = np.quantile(shares, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def by_class(groups: Sequence[Judged], tie_points: int = 0) -> dict[str, dict[str, float | int | None]]:
    """`summarise` and the calibration error for every mechanics class."""
    found: dict[str, dict[str, float | int | None]] = {}
    for name in sorted({group.mechanics_class for group in groups}):
        members = [group for group in groups if group.mechanics_class == name]
        found[name] = {**summarise(members, tie_points), "calibration_error_points": calibration_error(members)}
    return found


def by_position(groups: Sequence[Judged], tie_points: int = 0) -> list[dict[str, float | int | None]]:
    """For every position shown: mean points of both sides, MAE, and agreement of the pairs that the position is in."""
    rows: list[dict[str, float | int | None]] = []
    for place in range(max((len(group.order) for group in groups), default=0)):
        judge, student, pairs, agreed = [], [], 0, 0
        for group in (g for g in groups if place < len(g.order)):
            k = group.order[place]
            others = [j for j in range(len(group.judge)) if j != k]
            pairs += len(others)
            if group.student is None:
                continue
            judge.append(group.judge[k])
            student.append(group.student[k])
            agreed += sum(
                pair_sign(group.judge[k], group.judge[j], tie_points)
                == pair_sign(group.student[k], group.student[j], tie_points)
                for j in others
            )
        rows.append(
            {
                "position": place,
                "judge_mean": _mean(judge),
                "student_mean": _mean(student),
                "mae_points": _mean([abs(a - b) for a, b in zip(judge, student, strict=True)]),
                "pairwise_agreement": _share(agreed, pairs),
            }
        )
    return rows


def calibration(groups: Sequence[Judged], bins: int = 10) -> list[dict[str, float | int]]:
    """Mean judge score by the student's score, in equal bins of 0..100; empty bins are left out."""
    pairs = [(s, j) for g in groups if g.student is not None for s, j in zip(g.student, g.judge, strict=True)]
    rows: list[dict[str, float | int]] = []
    for index in range(bins):
        low, high = 100.0 * index / bins, 100.0 * (index + 1) / bins
        inside = [(s, j) for s, j in pairs if low <= s < high or (index == bins - 1 and s == high)]
        if inside:
            rows.append(
                {
                    "low": low,
                    "high": high,
                    "count": len(inside),
                    "student_mean": fmean(s for s, _ in inside),
                    "judge_mean": fmean(j for _, j in inside),
                }
            )
    return rows


def calibration_error(groups: Sequence[Judged]) -> float | None:
    """Mean distance of the two means over the bins, weighted by the number of scores, in points."""
    rows = calibration(groups)
    total = sum(int(row["count"]) for row in rows)
    if not total:
        return None
    return sum(row["count"] * abs(row["student_mean"] - row["judge_mean"]) for row in rows) / total


def baseline_scores(training: Sequence[Judged], test: Sequence[Judged]) -> Mapping[str, list[Judged]]:
    """The test groups as judges would score them that have seen no picture, fitted on the training groups.

    * `constant`: one score for everything: agrees on ties only.
    * `position_only`: the mean of the place at which a candidate is shown.
    * `class_only`: the mean of the condition's mechanics class: equal inside a group.
    """
    values = [score for group in training for score in group.judge]
    overall = fmean(values) if values else 50.0
    place: dict[int, list[float]] = {}
    classes: dict[str, list[float]] = {}
    for group in training:
        classes.setdefault(group.mechanics_class, []).extend(group.judge)
        for position, candidate in enumerate(group.order):
            place.setdefault(position, []).append(group.judge[candidate])

    def with_scores(group: Judged, scores: Sequence[float]) -> Judged:
        named = (group.group_id, group.cluster, group.mechanics_class, group.judge)
        return Judged(*named, tuple(scores), group.order)

    def at_position(group: Judged) -> list[float]:
        found = [0.0] * len(group.judge)
        for position, candidate in enumerate(group.order):
            found[candidate] = fmean(place.get(position, [overall]))
        return found

    return {
        "constant": [with_scores(g, [overall] * len(g.judge)) for g in test],
        "position_only": [with_scores(g, at_position(g)) for g in test],
        "class_only": [with_scores(g, [fmean(classes.get(g.mechanics_class, [overall]))] * len(g.judge)) for g in test],
    }
