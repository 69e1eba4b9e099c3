"""What a probe's scores say about a judge.

Model of one score: s = m(group, candidate) + p(place) + b(request) + e, with independent e of deviation `within`, and
b of deviation `between`. Places are balanced by rotations: each candidate stands once in each place, and b cancels.
Shapes: G groups, R repeats, K candidates or places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean, variance
from typing import Any

from stateplay_rl.judges.probe_plan import BROKEN, Source, Variant

_CONFIDENCE = 0.95
_ROUNDING = 1e-18
_Z = NormalDist().inv_cdf(0.5 + _CONFIDENCE / 2)


@dataclass(frozen=True)
class Showing:
    """A variant of a group with its scores by place; None when the judge gave none."""

    group_id: str
    variant: Variant
    scores: tuple[float, ...] | None

    def of(self, source: Source) -> float:
        """Score of what stands somewhere in this showing."""
        assert self.scores is not None, "only complete showings are asked"
        return self.scores[self.variant.sources.index(source)]


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; the ends are None where one group or repeat leaves nothing to tell."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PlantedResult:
    """How a planted candidate fared. `rank` 1 is the best of K, ties share; `lowest` is the share of groups."""

    groups: int
    score: float
    rank: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class ProbeResult:
    """A probe in numbers, in points where nothing else is said.

    Args:
        within: noise of one score inside an answer.
        between: common offset of whole answers.
        position: effect of each place, the first first.
        signal: deviation of the candidates' true differences inside a group.
        signal_to_noise: signal / within; None when the judge has no noise at all.
        duplicate_gap: root mean square gap between a candidate and its duplicate in one request.
        duplicate_expected: what `within` alone would give.
        prompt_shift: mean change of a score when the text about the opponent is shown the other way round.
        prompt_reordered: share of candidate pairs whose order changes with it.
    """

    groups: int
    showings: int
    missing: int
    within: Estimate | None
    between: Estimate | None
    position: tuple[Estimate, ...]
    signal: float | None
    signal_to_noise: float | None
    noise_free: bool
    duplicate_gap: float | None
    duplicate_expected: float | None
    planted: Mapping[str, PlantedResult]
    prompt_shift: float | None
    prompt_reordered: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def analyse(showings: Sequence[Showing]) -> ProbeResult:
    """All statistics of a probe."""
    complete = [showing for showing in showings if showing.scores is not None]
    groups = sorted({showing.group_id for showing in complete})
    by_group = {g: [s for s in complete if s.group_id == g] for g in groups}
    repeats = [_scores(by_group[g], "repeat") for g in groups]
    within, between = _noise([rows for rows in repeats if len(rows) > 1])
    position = _position([_square(by_group[g]) for g in groups], within)
    signal = _signal(by_group, position, within)
    noise = within.value if within is not None else None
    gap = _duplicate_gap(complete)
    shift, reordered = _prompt(by_group)
    return ProbeResult(
        groups=len(groups),
        showings=len(showings),
        missing=len(showings) - len(complete),
        within=within,
        between=between,
        position=position,
        signal=signal,
        signal_to_noise=signal / noise if signal is not None and noise else None,
        noise_free=noise == 0.0,
        duplicate_gap=gap,
        duplicate_expected=None if noise is None else math.sqrt(2.0) * noise,
        planted={str(name): found for name in ("reference", *BROKEN) if (found := _planted(complete, name))},
        prompt_shift=shift,
        prompt_reordered=reordered,
    )


def _scores(showings: Sequence[Showing], kind: str) -> list[tuple[float, ...]]:
    return [s.scores for s in showings if s.variant.kind == kind and s.scores is not None]


def _square(showings: Sequence[Showing]) -> list[tuple[float, ...]]:
    """One showing per rotation, the stored order first; empty when one is missing."""
    first = [s.scores for s in showings if s.variant.kind == "repeat" and s.variant.repeat == 0]
    rows = [row for row in [*first, *_scores(showings, "rotation")] if row is not None]
    return rows if rows and len(rows) == len(rows[0]) else []


def _noise(groups: Sequence[Sequence[Sequence[float]]]) -> tuple[Estimate | None, Estimate | None]:
    """Deviations within and between answers, from repeats of one and the same request [G][R][K]."""
    residual = rows = 0.0
    residual_df = row_df = 0
    width = 0
    for matrix_RK in groups:
        r, width = len(matrix_RK), len(matrix_RK[0])
        columns = [fmean(row[k] for row in matrix_RK) for k in range(width)]
        means = [fmean(row) for row in matrix_RK]
        total = fmean(means)
        residual += sum((matrix_RK[i][k] - columns[k] - means[i] + total) ** 2 for i in range(r) for k in range(width))
        rows += width * sum((value - total) ** 2 for value in means)
        residual_df += (r - 1) * (width - 1)
        row_df += r - 1
    if not residual_df or not row_df:
        return None, None
    # What is left of equal scores is rounding.
    residual = residual if residual / residual_df > _ROUNDING else 0.0
    square = residual / residual_df
    low, high = _chi_square_ends(residual_df)
    within = Estimate(math.sqrt(square), math.sqrt(residual / high), math.sqrt(residual / low))
    low, high = _chi_square_ends(row_df)
    between = Estimate(*(math.sqrt(max(0.0, ms - square) / width) for ms in (rows / row_df, rows / high, rows / low)))
    return within, between


def _position(squares: Sequence[Sequence[Sequence[float]]], within: Estimate | None) -> tuple[Estimate, ...]:
    """Effect of each place, from groups whose rotations are all there; 95 % intervals for all places together."""
    whole = [square for square in squares if square]
    if not whole:
        return ()
    effects: list[list[float]] = []
    for square in whole:
        places = [fmean(row[p] for row in square) for p in range(len(square))]
        effects.append([place - fmean(places) for place in places])
    width = len(effects[0])
    # An effect of one group is a mean of K scores minus the mean of K * K.
    least = 0.0 if within is None else within.value**2 * (1 - 1 / width) / width
    return tuple(_mean_interval([effect[p] for effect in effects], least, width) for p in range(width))


def _signal(
    by_group: Mapping[str, Sequence[Showing]], position: Sequence[Estimate], within: Estimate | None
) -> float | None:
    """Deviation of the candidates' means inside a group, places and noise taken off."""
    if within is None:
        return None
    squares: list[float] = []
    for showings in by_group.values():
        plain = [s for s in showings if s.variant.kind in ("repeat", "rotation", "reversal")]
        if not plain:
            continue
        width = len(plain[0].variant.sources)
        shift = [p.value for p in position] or [0.0] * width
        values: dict[Source, list[float]] = {k: [] for k in range(width)}
        for showing in plain:
            for place, source in enumerate(showing.variant.sources):
                values[source].append((showing.scores or ())[place] - shift[place])
        squares.append(variance([fmean(v) for v in values.values()]) - within.value**2 / len(plain))
    return math.sqrt(max(0.0, fmean(squares))) if squares else None


def _duplicate_gap(showings: Sequence[Showing]) -> float | None:
    gaps = [s.of("duplicate") - s.of(0) for s in showings if "duplicate" in s.variant.sources]
    return math.sqrt(fmean(gap**2 for gap in gaps)) if gaps else None


def _planted(showings: Sequence[Showing], name: Source) -> PlantedResult | None:
    found = [s for s in showings if name in s.variant.sources]
    if not found:
        return None
    scores, ranks, lowest, highest = [], [], 0, 0
    for showing in found:
        own = showing.of(name)
        others = [s for i, s in enumerate(showing.scores or ()) if i != showing.variant.sources.index(name)]
        scores.append(own)
        ranks.append(1 + sum(s > own for s in others) + 0.5 * sum(s == own for s in others))
        lowest += all(own < s for s in others)
        highest += all(own > s for s in others)
    count = len(found)
    return PlantedResult(count, fmean(scores), fmean(ranks), lowest / count, highest / count)


def _prompt(by_group: Mapping[str, Sequence[Showing]]) -> tuple[float | None, float | None]:
    """Mean shift and share of reordered pairs between the two ways to treat the text."""
    shifts: list[float] = []
    pairs = changed = 0
    for showings in by_group.values():
        other = _scores(showings, "other_prompt")
        same = _scores(showings, "repeat")
        if not other or not same:
            continue
        usual = [fmean(row[k] for row in same) for k in range(len(other[0]))]
        shifts += [b - a for a, b in zip(usual, other[0], strict=True)]
        for i in range(len(usual)):
            for j in range(i):
                pairs += 1
                changed += (usual[i] - usual[j]) * (other[0][i] - other[0][j]) < 0
    return (fmean(shifts), changed / pairs) if pairs else (None, None)


def _mean_interval(values: Sequence[float], least_variance: float, intervals: int) -> Estimate:
    """Mean with its t interval.

    Args:
        values: independent ones.
        least_variance: what is known of their variance: few groups may agree by luck.
        intervals: how many are given together; each is widened, so that all of them hold with 95 %.
    """
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(mean, None, None)
    spread = math.sqrt(max(variance(values), least_variance) / len(values))
    half = _t_quantile(len(values) - 1, NormalDist().inv_cdf(1 - (1 - _CONFIDENCE) / (2 * intervals))) * spread
    return Estimate(mean, mean - half, mean + half)


def _t_quantile(df: int, z: float) -> float:
    """Quantile of Student's t where the normal one is `z`, by Cornish and Fisher (within 1 % from 5 degrees on)."""
    first = (z**3 + z) / (4 * df)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    return z + first + second + third


def _chi_square_ends(df: int) -> tuple[float, float]:
    """2.5 and 97.5 percentiles of chi-square, by Wilson and Hilferty's cube root."""
    spread = math.sqrt(2.0 / (9.0 * df))
    low, high = (df * max(1e-9, 1 - 2.0 / (9.0 * df) + sign * _Z * spread) ** 3 for sign in (-1, 1))
    return low, high
