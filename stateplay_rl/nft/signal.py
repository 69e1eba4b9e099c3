"""Is there a signal? Spread of the scores, and agreement of the policy gradients of disjoint candidate sets.

Ours, after two small prototypes: with alike candidates (within-group deviation 5 points) the cosine was
about 0 and no setting helped on held-out conditions; with both kinds in most groups (24.5) it was 0.8 and
ten batches sufficed.
Shapes: G groups, K candidates, N gradient vectors, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GOOD_FROM_POINTS = 50.0
MODE_GAP_POINTS = 20.0
CLEAR_COSINE = 0.2
BOTH_MODES_SHARE = 0.5
WISHED_COSINE = 0.5
ALIKE_BELOW_POINTS = 10.0
PARAMETERS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Spread:
    """Spread of the scores of G fully judged groups, in points; shares in 0..1.

    Args:
        groups: G.
        within_group: mean over groups of the population deviation within the group.
        between_conditions: population deviation of the group means.
        share_both_modes: groups whose best is good, whose worst is not, and that lie a clear gap apart.
        share_tied: groups with equal scores.
    """

    groups: int
    within_group: float
    between_conditions: float
    share_both_modes: float
    share_tied: float


def spread(
    scores_GK: Tensor, *, good_from_points: float = GOOD_FROM_POINTS, mode_gap_points: float = MODE_GAP_POINTS
) -> Spread:
    """Measure the spread of fully judged groups.

    Args:
        scores_GK: scores in points [G, K].
        good_from_points: smallest score of a good candidate.
        mode_gap_points: smallest distance of best and worst for a group to hold both modes: without it, alike
            candidates around `good_from_points` would count.

    Raises:
        ValueError: no group, or a score that is not finite.
    """
    if scores_GK.dim() != 2 or scores_GK.numel() == 0 or not bool(torch.isfinite(scores_GK).all()):
        raise ValueError(f"need finite scores [groups, candidates], got {tuple(scores_GK.shape)}")
    scores = scores_GK.double()
    best, worst = scores.amax(dim=1), scores.amin(dim=1)
    both = (best >= good_from_points) & (worst < good_from_points) & (best - worst >= mode_gap_points)
    return Spread(
        groups=int(scores.shape[0]),
        within_group=float(scores.std(dim=1, correction=0).mean()),
        between_conditions=float(scores.mean(dim=1).std(correction=0)),
        share_both_modes=float(both.double().mean()),
        share_tied=float((best == worst).double().mean()),
    )


def without_noise(within_group: float, noise_points: float, candidates: int) -> float:
    """The deviation inside a group that would be left of a judge without noise.

    Independent noise adds its variance to the true one; the population deviation of K scores sees (K - 1) / K of both.

    Args:
        within_group: measured deviation, `Spread.within_group`, points.
        noise_points: deviation of one score when the same candidate is judged again, points.
        candidates: K.

    Returns:
        Points, 0 when noise explains it all.
    """
    seen = noise_points**2 * (candidates - 1) / candidates
    return float(max(within_group**2 - seen, 0.0) ** 0.5)


def gram(gradients_NP: Tensor) -> Tensor:
    """Inner products of gradient vectors, float64 [N, N]; all that a cosine of sums needs.

    Widened a block of parameters at a time: a float64 copy of all vectors would take twice their memory.
    """
    units = gradients_NP.shape[0]
    total_NN = torch.zeros(units, units, dtype=torch.float64, device=gradients_NP.device)
    for block in torch.split(gradients_NP, PARAMETERS_AT_ONCE, dim=1):
        wide = block.double()
        total_NN += wide @ wide.T
    return total_NN


@dataclass(frozen=True)
class GradientCosine:
    """Cosine between the summed gradients of two disjoint halves, over random splits.

    Args:
        mean: mean over the splits.
        low, high: 2.5 and 97.5 percentiles over the splits; the splits share vectors, so this shows how
            much the choice of halves matters, not a confidence interval over conditions.
        splits: number of splits.
        units_per_half: vectors (groups) in each half.
    """

    mean: float
    low: float
    high: float
    splits: int
    units_per_half: int


def gradient_cosine(gram_NN: Tensor, *, splits: int = 32, seed: int = 0) -> GradientCosine:
    """cos(sum of half A, sum of half B) for `splits` random halves of N units.

    A unit should be a whole group: advantages sum to about zero within a group, so splitting one between the
    halves would make them disagree by construction.

    Args:
        gram_NN: inner products of the units' gradient vectors; see `gram`.
        splits: random splits, at least 1.
        seed: seed of the splits.

    Raises:
        ValueError: fewer than two units, no split, or gradients that are all zero or not finite.
    """
    units = int(gram_NN.shape[0])
    if gram_NN.dim() != 2 or gram_NN.shape[1] != units or units < 2 or splits < 1:
        raise ValueError(f"need a Gram matrix of at least 2 units and 1 split, got {tuple(gram_NN.shape)}, {splits}")
    if not bool(torch.isfinite(gram_NN).all()):
        raise ValueError("a gradient is not finite")
    half = units // 2
    generator = torch.Generator().manual_seed(seed)
    cosines = []
    for _ in range(splits):
        order = torch.randperm(units, generator=generator)
        a, b = order[:half], order[half : 2 * half]
        norm = math.sqrt(max(float(gram_NN[a][:, a].sum()), 0.0) * max(float(gram_NN[b][:, b].sum()), 0.0))
        if norm == 0.0:
            raise ValueError("the gradient of one half is exactly zero: nothing is trained")
        cosines.append(float(gram_NN[a][:, b].sum()) / norm)
    values = torch.tensor(cosines, dtype=torch.float64)
    low, high = torch.quantile(values, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return GradientCosine(float(values.mean()), low, high, splits, half)


def units_for_cosine(measured: float, units_per_half: int, wished: float = WISHED_COSINE) -> int | None:
    """Units (conditions) per batch at which two batches would agree with cosine `wished`.

    With unit gradients = common part + independent noise, cos = n s / (n s + 1) for n units and
    signal-to-noise s: so n* = n (c* / (1 - c*)) / (c / (1 - c)).

    Returns:
        The number, at least 1; None if the measured cosine is not above 0 (no number of conditions is known
        to help).

    Raises:
        ValueError: a wished cosine outside (0, 1) or no unit.
    """
    if not 0.0 < wished < 1.0 or units_per_half < 1:
        raise ValueError(f"wished cosine {wished} must lie in (0, 1), units {units_per_half} above 0")
    if measured <= 0.0:
        return None
    if measured >= 1.0:
        return 1
    needed = units_per_half * (wished / (1.0 - wished)) * ((1.0 - measured) / measured)
    # A hair below an integer is that integer: 14.000000000000002 conditions are 14.
    return max(1, math.ceil(needed - 1e-9))


def expectation(scores: Spread, cosine: GradientCosine | None, wished: float = WISHED_COSINE) -> Sequence[str]:
    """What to expect from training on this signal, in sentences."""
    words = [
        f"Within a group the scores deviate by {scores.within_group:.1f} points, between conditions by "
        f"{scores.between_conditions:.1f}; {scores.share_both_modes:.0%} of {scores.groups} groups hold both "
        f"good and bad candidates, {scores.share_tied:.0%} are tied."
    ]
    if scores.within_group < ALIKE_BELOW_POINTS or scores.share_both_modes < BOTH_MODES_SHARE:
        words.append(
            "The candidates of a group are too alike: expect the trained conditions to be memorised and no "
            "gain on held-out ones. Widen the spread (another checkpoint, more varied sampling) first."
        )
    else:
        words.append("The candidates differ enough within their groups for a comparison to mean something.")
    if cosine is None:
        words.append("The gradient cosine was not measured: whether batches agree on a direction is not known.")
        return words
    measured = (
        f"Gradients of two disjoint sets of {cosine.units_per_half} conditions agree with cosine "
        f"{cosine.mean:.2f} ({cosine.low:.2f} to {cosine.high:.2f} over {cosine.splits} splits)"
    )
    needed = units_for_cosine(cosine.mean, cosine.units_per_half, wished)
    if needed is None:
        words.append(f"{measured}: there is no common direction, more conditions per batch are not known to help.")
        return words
    asked = f"a cosine of {wished:.1f} asks for about {needed} conditions per batch"
    if cosine.mean >= CLEAR_COSINE:
        words.append(f"{measured}: a clear common direction, expect a held-out gain within tens of batches; {asked}.")
    else:
        words.append(f"{measured}: a weak common direction, expect slow progress; {asked}.")
    return words
