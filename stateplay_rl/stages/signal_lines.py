"""The lines of `sprl verify signal`: what was measured against the go/no-go thresholds, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from stateplay_rl.checks.lines import CheckLine
from stateplay_rl.nft.signal import (
    ALIKE_BELOW_POINTS,
    BOTH_MODES_SHARE,
    CLEAR_COSINE,
    GradientCosine,
    Spread,
    without_noise,
)
from stateplay_rl.stages.judge_noise import JudgeNoise

GO_CANDIDATES = 96
"""Candidates in all at which `CLEAR_COSINE` is the threshold: fewer make the cosine smaller and less sure."""
_WIDER = "widen the spread first: another checkpoint, more varied sampling, more candidates"
_MORE = "score more groups of this policy, or give more conditions per batch; see the sentences below"
_CALMER = "another judge or protocol, or more repeats: sprl score GROUPS --probe"


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Args:
        scores: spread of the scores.
        candidates: candidates of a group.
        training: groups whose gradients were compared: neither tied nor gated.
        cosine: None where it could not be measured.
        why_not: the reason then.
    """

    scores: Spread
    candidates: int
    training: int
    cosine: GradientCosine | None
    why_not: str = ""


def signal_lines(measured: Measured, judge_id: str, noise: JudgeNoise | None) -> tuple[CheckLine, ...]:
    """A line per threshold, and one on the judge's noise."""
    scores = measured.scores
    return (
        _threshold(
            "within-group deviation",
            scores.within_group >= ALIKE_BELOW_POINTS,
            f"{scores.within_group:.1f} points, at least {ALIKE_BELOW_POINTS:.0f} asked for",
            _WIDER,
        ),
        _threshold(
            "both modes",
            scores.share_both_modes >= BOTH_MODES_SHARE,
            f"{scores.share_both_modes:.0%} of {scores.groups} groups hold good and bad candidates, at least "
            f"{BOTH_MODES_SHARE:.0%} asked for",
            _WIDER,
        ),
        _cosine_line(measured),
        _noise_line(measured, judge_id, noise),
    )


def _cosine_line(measured: Measured) -> CheckLine:
    cosine, name = measured.cosine, "gradient cosine"
    if cosine is None:
        return CheckLine(name, "failed", f"not measured: {measured.why_not}", todo=_MORE)
    half = cosine.units_per_half * measured.candidates
    detail = (
        f"{cosine.mean:.2f} ({cosine.low:.2f} to {cosine.high:.2f} over {cosine.splits} splits, halves of "
        f"{cosine.units_per_half} groups, {half} candidates), at least {CLEAR_COSINE} asked for"
    )
    if 2 * half < GO_CANDIDATES:
        detail += f" at {GO_CANDIDATES} candidates in all: here are fewer"
    return _threshold(name, cosine.mean >= CLEAR_COSINE, detail, _MORE)


def _noise_line(measured: Measured, judge_id: str, noise: JudgeNoise | None) -> CheckLine:
    """The deviation inside groups once the judge's noise is taken out, against the same threshold."""
    name = "judge noise"
    if noise is None:
        detail = f"not known: no probe of judge {judge_id} was found, so none is subtracted"
        return CheckLine(name, "skipped", detail, todo="sprl score GROUPS --probe, then --set probe=DIR")
    within = measured.scores.within_group
    left = without_noise(within, noise.points, measured.candidates)
    detail = (
        f"a score deviates by {noise.points:.1f} points when it is given again; of {within:.1f} points within groups "
        f"{left:.1f} are left without that, at least {ALIKE_BELOW_POINTS:.0f} asked for ({noise.probe})"
    )
    return _threshold(name, left >= ALIKE_BELOW_POINTS, detail, _CALMER)


def _threshold(name: str, reached: bool, detail: str, todo: str) -> CheckLine:
    return CheckLine(name, "passed" if reached else "failed", detail, todo="" if reached else todo)
