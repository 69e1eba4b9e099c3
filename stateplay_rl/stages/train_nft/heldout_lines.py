"""What independent viewers saw of the held-out videos, as parts of a line of `heldout.jsonl`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stateplay_rl.evaluation.action_following import ActionReferee
from stateplay_rl.evaluation.checkout_metrics import CheckoutMetrics, StateplayEvaluator
from stateplay_rl.evaluation.horizon import HORIZONS, mean_horizon
from stateplay_rl.evaluation.intervals import Bounds
from stateplay_rl.evaluation.picture import picture_drift
from stateplay_rl.evaluation.referee import RefereeVerdict, mean_of
from stateplay_rl.nft.statistics import bootstrap_conditions
from stateplay_rl.stages.train_nft.samples import JudgedGroup


@dataclass(frozen=True)
class Pictures:
    """Picture measures of a group's videos, whole and in quarters, and of the real clip where there is one."""

    details: tuple[Mapping[str, float], ...]
    quarters: tuple[Sequence[Mapping[str, float]], ...]
    real: Mapping[str, float] | None
    real_quarters: Sequence[Mapping[str, float]] | None


@dataclass(frozen=True)
class GroupLook:
    """What was seen in a group's videos, one entry a candidate: verdicts, evaluators' numbers, commanded moves."""

    condition_id: str
    mechanics_class: str
    verdicts: tuple[RefereeVerdict, ...]
    metrics: tuple[CheckoutMetrics, ...]
    pictures: Pictures
    obeyed: tuple[Mapping[str, Bounds], ...] = ()


def drift_line(results: Sequence[GroupLook], judged: Sequence[JudgedGroup]) -> dict[str, Any] | None:
    """Picture measures of the videos beside those of the real clips; None where no condition has one."""
    plain = {group.condition_id: group for group in judged}
    generated: dict[str, list[Mapping[str, float]]] = {}
    real: dict[str, Mapping[str, float]] = {}
    for result in results:
        group = plain[result.condition_id]
        pictures = result.pictures
        generated[result.condition_id] = [{**group.picture, **detail} for detail in pictures.details]
        if pictures.real is not None and group.picture_real is not None:
            real[result.condition_id] = {**group.picture_real, **pictures.real}
    drift = picture_drift(generated, real)
    return None if drift is None else {**asdict(drift), "by_horizon": _drift_by_horizon(results)}


def _drift_by_horizon(results: Sequence[GroupLook]) -> list[dict[str, Any]]:
    """The same, quarter by quarter; a video too short for so many has fewer."""
    found = []
    for k in range(HORIZONS):
        ours = {r.condition_id: [q[k] for q in r.pictures.quarters if k < len(q)] for r in results}
        clips = {r.condition_id: r.pictures.real_quarters or () for r in results}
        drift = picture_drift(ours, {name: quarters[k] for name, quarters in clips.items() if k < len(quarters)})
        if drift is not None:
            found.append(asdict(drift))
    return found


def referee_line(name: str, results: Sequence[GroupLook], clusters: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Means with intervals over clusters of conditions: of all, by class, by horizon; and counts by part."""
    verdicts = [verdict for result in results for verdict in result.verdicts]
    by_class: dict[str, list[GroupLook]] = defaultdict(list)
    parts: dict[str, Bounds] = defaultdict(Bounds)
    for result in results:
        by_class[result.mechanics_class].append(result)
        for verdict in result.verdicts:
            for part, bounds in verdict.parts.items():
                parts[part] += bounds

    def told(members: Sequence[GroupLook]) -> dict[str, Any]:
        lows = {r.condition_id: [v.low for v in r.verdicts] for r in members}
        return {**mean_of([v for r in members for v in r.verdicts]), "low_ci95": _interval(lows, clusters, seed)}

    return {
        "name": name,
        **told(results),
        "parts": {part: bounds.to_json() for part, bounds in sorted(parts.items())},
        "by_class": {kind: told(members) for kind, members in sorted(by_class.items())},
        "by_horizon": _by_horizon(results, clusters, seed) if any(v.horizon for v in verdicts) else [],
    }


def _by_horizon(results: Sequence[GroupLook], clusters: Mapping[str, int], seed: int) -> list[dict[str, Any]]:
    """The quarters of all videos, first to last."""
    found = []
    for k in range(HORIZONS):
        quarters = {r.condition_id: [v.horizon[k] for v in r.verdicts if k < len(v.horizon)] for r in results}
        members = [part for parts in quarters.values() for part in parts]
        if members:
            lows = {name: [part.points[0] for part in parts] for name, parts in quarters.items()}
            found.append({**mean_horizon(members), "low_ci95": _interval(lows, clusters, seed)})
    return found


def _interval(
    values: Mapping[str, Sequence[float]], clusters: Mapping[str, int], seed: int
) -> list[float | None] | None:
    """95 % interval of the mean over conditions, resampled by cluster."""
    means = {condition: float(np.mean(points)) for condition, points in values.items() if points}
    interval = bootstrap_conditions(means, clusters, seed=seed)
    return None if interval is None else [interval.low, interval.high]


def evaluator_line(evaluator: StateplayEvaluator, results: Sequence[GroupLook]) -> dict[str, Any]:
    """Mean of every number of the checkout's evaluators, and what is missing, be it for some of the videos only."""
    rows: dict[str, list[float]] = defaultdict(list)
    reasons: dict[str, list[str]] = defaultdict(list)
    answers = [metrics for result in results for metrics in result.metrics]
    for metrics in answers:
        for name, value in metrics.values.items():
            rows[name].append(value)
        for name, reason in metrics.missing.items():
            reasons[name].append(reason)
    missing = {
        name: found[0] if len(found) == len(answers) else f"{found[0]} ({len(found)} of {len(answers)} videos)"
        for name, found in sorted(reasons.items())
    }
    return {
        "name": evaluator.name,
        "source_sha256": evaluator.source_sha256,
        "means": {name: float(np.mean(values)) for name, values in sorted(rows.items())},
        "videos": {name: len(values) for name, values in sorted(rows.items())},
        "missing": {**evaluator.missing, **missing},
    }


def actions_line(referee: ActionReferee, results: Sequence[GroupLook]) -> dict[str, Any]:
    """Commanded moves that happen, beside the real clips; probes that failed their calibration with the reason only."""
    total: dict[str, Bounds] = defaultdict(Bounds)
    for result in results:
        for seen in result.obeyed:
            for probe, bounds in seen.items():
                total[probe] += bounds
    calibrations = referee.calibrations
    real = {name: c.real.to_json() for name, c in calibrations.items() if c.usable and c.real is not None}
    return {
        "name": referee.name,
        "obeyed": {probe: bounds.to_json() for probe, bounds in sorted(total.items())},
        "real": real,
        "withheld": {name: c.reason for name, c in calibrations.items() if not c.usable},
    }
