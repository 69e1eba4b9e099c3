"""From absolute scores to the optimality r, and which groups take part in the update.

Source: arXiv 2509.16117, section 3 and Algorithm 1; public trainer. Differences: the deviation has a floor in
points instead of + 1e-4 in the denominator; equal scores give r = 0.5 exactly, whatever float residue their
mean leaves; a group with a failed or partial judgement is gated as a whole. Shapes: G groups, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

DeviationOf = Literal["group", "batch"]
GatingMode = Literal["standard", "guard"]
GateReason = Literal["failed", "tied", "narrow", "all_bad"]
Scores = Sequence[Sequence[float | None]]
BEST_AT_LEAST_POINTS = 50.0


@dataclass(frozen=True)
class Optimality:
    """What scores become.

    Args:
        r_GK: optimality in [0, 1], float64.
        advantage_GK: (S - mu) / max(std, floor), unclipped, float64; 0 where tied.
        mean_G: group means, points.
        std_G: the deviation that divides each group, before the floor, points.
        tied_G: bool, all scores of the group equal.
    """

    r_GK: Tensor
    advantage_GK: Tensor
    mean_G: Tensor
    std_G: Tensor
    tied_G: Tensor


def optimality(
    scores_GK: Tensor, *, advantage_clip: float, std_floor_points: float, deviation_of: DeviationOf = "batch"
) -> Optimality:
    """r = 0.5 + 0.5 clip((S - mu_g) / Z, -1, 1) with Z = advantage_clip max(std, std_floor_points).

    Args:
        scores_GK: absolute scores 0..100 of fully judged groups, [G, K].
        advantage_clip: multiples of the deviation at which r reaches 0 or 1; above 0.
        std_floor_points: smallest deviation that divides, points; 0 allowed.
        deviation_of: population deviation of each `group`, or of all scores of the `batch`.

    Raises:
        ValueError: a non-finite score (a failure is not a score), or settings out of range.
    """
    if scores_GK.dim() != 2 or scores_GK.shape[1] < 1:
        raise ValueError(f"scores must be [groups, candidates], got {tuple(scores_GK.shape)}")
    if not bool(torch.isfinite(scores_GK).all()):
        raise ValueError("scores must be finite: leave failed groups out before this")
    if not advantage_clip > 0 or not std_floor_points >= 0:
        raise ValueError(
            f"advantage_clip {advantage_clip} must be above 0, std_floor_points {std_floor_points} not below"
        )
    scores = scores_GK.double()
    mean_G = scores.mean(dim=1)
    if deviation_of == "group":
        std_G = scores.std(dim=1, correction=0)
    elif deviation_of == "batch":
        std_G = scores.std(correction=0).expand(scores.shape[0]) if scores.numel() else mean_G
    else:
        raise ValueError(f"deviation_of must be group or batch, got {deviation_of!r}")
    tied_G = scores.amax(dim=1) == scores.amin(dim=1)
    # A tied group is 0 by definition: dividing the residue of its mean by a deviation near 0 would not be.
    divisor = std_G.clamp(min=std_floor_points)
    divisor = torch.where(divisor > 0, divisor, torch.ones_like(divisor))
    advantage = torch.where(tied_G[:, None], torch.zeros_like(scores), (scores - mean_G[:, None]) / divisor[:, None])
    r = 0.5 + 0.5 * (advantage / advantage_clip).clamp(-1.0, 1.0)
    return Optimality(r_GK=r, advantage_GK=advantage, mean_G=mean_G, std_G=std_G, tied_G=tied_G)


@dataclass(frozen=True)
class Gate:
    """Which groups of a batch train; `reasons[g]` is None for a group that does.

    A gated group stays on disk, is counted, and is never drawn again.
    """

    reasons: tuple[GateReason | None, ...]

    @property
    def trains(self) -> tuple[bool, ...]:
        """Groups that take part in the update."""
        return tuple(reason is None for reason in self.reasons)

    @property
    def judged(self) -> tuple[bool, ...]:
        """Fully judged groups: mean and deviation use all of them, before guard leaves any out."""
        return tuple(reason != "failed" for reason in self.reasons)

    def count(self, reason: GateReason) -> int:
        """Groups gated for this reason."""
        return sum(r == reason for r in self.reasons)


def _guard_reason(scores: Sequence[float], min_spread_points: float, min_best_points: float) -> GateReason | None:
    if max(scores) == min(scores):
        return "tied"
    if float(torch.tensor(scores, dtype=torch.float64).std(correction=0)) < min_spread_points:
        return "narrow"
    return "all_bad" if max(scores) < min_best_points else None


def gate(
    scores: Scores,
    mode: GatingMode = "standard",
    *,
    candidates: int,
    min_spread_points: float = 0.0,
    min_best_points: float = BEST_AT_LEAST_POINTS,
) -> Gate:
    """Decide which groups train. Pure: depends on the scores and the settings only.

    Args:
        scores: per group the scores of its candidates in points, None where a judgement failed.
        mode: `standard` gates failed groups only; `guard` also tied, narrow and all-bad ones.
        candidates: candidates that a complete group holds.
        min_spread_points: guard: smallest population deviation within the group.
        min_best_points: guard: smallest best score.

    Raises:
        ValueError: an unknown mode or a score that is not finite.
    """
    if mode not in ("standard", "guard"):
        raise ValueError(f"gating mode must be standard or guard, got {mode!r}")
    reasons: list[GateReason | None] = []
    for group in scores:
        values = [s for s in group if s is not None]
        if not all(abs(s) < float("inf") for s in values):
            raise ValueError(f"scores must be finite or None: {list(group)}")
        if len(values) != candidates or len(group) != candidates:
            reasons.append("failed")
        elif mode == "guard":
            reasons.append(_guard_reason(values, min_spread_points, min_best_points))
        else:
            reasons.append(None)
    return Gate(reasons=tuple(reasons))


@dataclass(frozen=True)
class BatchOptimality:
    """A whole batch: `rows[g]` is the row of group g in `optimality`, None where its judgement failed."""

    gate: Gate
    optimality: Optimality
    rows: tuple[int | None, ...]

    def r(self, group: int) -> tuple[float, ...]:
        """r of a judged group's candidates.

        Raises:
            ValueError: the group's judgement failed: it has no r.
        """
        row = self.rows[group]
        if row is None:
            raise ValueError(f"group {group} was not fully judged and has no r")
        return tuple(float(v) for v in self.optimality.r_GK[row])


def batch_optimality(
    scores: Scores,
    *,
    batch_gate: Gate,
    advantage_clip: float,
    std_floor_points: float,
    deviation_of: DeviationOf = "batch",
) -> BatchOptimality:
    """r of every fully judged group of a batch, those that guard leaves out included in mean and deviation.

    Args:
        scores: as given to `gate`; `batch_gate` is its result. Other arguments as in `optimality`.
    """
    judged = [[s for s in group if s is not None] for group, ok in zip(scores, batch_gate.judged, strict=True) if ok]
    width = len(judged[0]) if judged else 1
    table = torch.tensor(judged, dtype=torch.float64).reshape(len(judged), width)
    result = optimality(
        table, advantage_clip=advantage_clip, std_floor_points=std_floor_points, deviation_of=deviation_of
    )
    order = iter(range(len(judged)))
    rows = tuple(next(order) if ok else None for ok in batch_gate.judged)
    return BatchOptimality(gate=batch_gate, optimality=result, rows=rows)
