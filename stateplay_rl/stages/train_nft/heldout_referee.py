"""The referee's own curve over the held-out videos: what a judge that is also the reward cannot say of itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stateplay_rl.config.train_nft import HeldoutConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import UsageError
from stateplay_rl.evaluation.checkout_metrics import ClipInputs, StateplayEvaluator
from stateplay_rl.evaluation.horizon import HORIZONS, mean_horizon
from stateplay_rl.evaluation.intervals import Bounds
from stateplay_rl.evaluation.picture import measure_detail, measure_parts, picture_drift
from stateplay_rl.evaluation.referee import RefereeCase, RefereeVerdict, VideoReferee, mean_of
from stateplay_rl.nft.statistics import bootstrap_conditions
from stateplay_rl.stages.hud_choice import make_referee
from stateplay_rl.stages.train_nft.samples import JudgedGroup
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.video import decode_mp4


@dataclass(frozen=True)
class HeldoutViewers:
    """Who looks at held-out videos besides the training judge. Either may be missing."""

    referee: VideoReferee | None = None
    evaluator: StateplayEvaluator | None = None

    @classmethod
    def of(cls, config: HeldoutConfig, conditions: ConditionStore) -> HeldoutViewers:
        """Those that the settings name; none where no held-out evaluation is made.

        Raises:
            UsageError: a referee or an evaluator that does not fit.
            InputError: the checkout is missing or cannot be imported.
        """
        if config.conditions == 0:
            return cls()
        if (config.evaluator == "stateplay") != (config.evaluator_checkout is not None):
            raise UsageError(
                "heldout.evaluator stateplay and heldout.evaluator_checkout belong together",
                "--set heldout.evaluator=stateplay --set heldout.evaluator_checkout=PATH",
            )
        checkout = config.evaluator_checkout
        evaluator = None if checkout is None else StateplayEvaluator.open(checkout)
        return cls(make_referee(config.referee, conditions), evaluator)

    def look(
        self,
        groups: Sequence[StoredGroup],
        judged: Sequence[JudgedGroup],
        conditions: ConditionStore,
        processes: Processes,
        seed: int,
    ) -> dict[str, Any]:
        """What is added to the line of `heldout.jsonl`; equal on every rank.

        Args:
            groups: this rank's finished groups.
            judged: all ranks' judged groups, with the pictures' plain measures.
            conditions: their conditions, with state columns where the source has them.
            processes: the ranks.
            seed: of the bootstrap.
        """
        seen = [self._group(group, conditions) for group in groups]
        gathered = sorted(processes.gather(seen), key=lambda result: result.condition_id)
        clusters = {result.condition_id: conditions.by_id(result.condition_id).cluster_id for result in gathered}
        return {
            "referee": None if self.referee is None else _referee_line(self.referee.name, gathered, clusters, seed),
            "evaluator": None if self.evaluator is None else _evaluator_line(self.evaluator, gathered),
            "picture_drift": _drift(gathered, judged),
        }

    def _group(self, group: StoredGroup, conditions: ConditionStore) -> _GroupResult:
        record = group.record
        condition = record.condition_id
        states = conditions.states(condition)
        case = RefereeCase(conditions.first_frame(condition), np.array(record.buttons, np.uint8), record.prompt, states)
        verdicts: list[RefereeVerdict] = []
        values: list[Mapping[str, float]] = []
        details: list[Mapping[str, float]] = []
        quarters: list[Sequence[Mapping[str, float]]] = []
        for k in range(record.candidates):
            path = group.candidate_video(k)
            frames_ThwC = decode_mp4(path)
            details.append(measure_detail(frames_ThwC))
            quarters.append(measure_parts(frames_ThwC))
            if self.referee is not None:
                verdicts.append(self.referee.judge(frames_ThwC, case))
            if self.evaluator is not None:
                inputs = ClipInputs(
                    path, frames_ThwC, states, case.held_RK, reference_path=group.reference_video(), fps=record.fps
                )
                values.append(self.evaluator.evaluate(inputs).values)
        reference = group.reference_video()
        real, real_quarters = None, None
        if reference is not None:
            clip_ThwC = decode_mp4(reference)
            real, real_quarters = measure_detail(clip_ThwC), measure_parts(clip_ThwC)
        return _GroupResult(
            condition,
            record.mechanics_class,
            tuple(verdicts),
            tuple(values),
            _Pictures(tuple(details), tuple(quarters), real, real_quarters),
        )


@dataclass(frozen=True)
class _Pictures:
    """Picture measures of a group's videos, whole and in quarters, and of the real clip where there is one."""

    details: tuple[Mapping[str, float], ...]
    quarters: tuple[Sequence[Mapping[str, float]], ...]
    real: Mapping[str, float] | None
    real_quarters: Sequence[Mapping[str, float]] | None


@dataclass(frozen=True)
class _GroupResult:
    condition_id: str
    mechanics_class: str
    verdicts: tuple[RefereeVerdict, ...]
    values: tuple[Mapping[str, float], ...]
    pictures: _Pictures


def _drift(results: Sequence[_GroupResult], judged: Sequence[JudgedGroup]) -> dict[str, Any] | None:
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


def _drift_by_horizon(results: Sequence[_GroupResult]) -> list[dict[str, Any]]:
    """The same, quarter by quarter; a video too short for so many has fewer."""
    found = []
    for k in range(HORIZONS):
        ours = {r.condition_id: [q[k] for q in r.pictures.quarters if k < len(q)] for r in results}
        clips = {r.condition_id: r.pictures.real_quarters or () for r in results}
        drift = picture_drift(ours, {name: quarters[k] for name, quarters in clips.items() if k < len(quarters)})
        if drift is not None:
            found.append(asdict(drift))
    return found


def _referee_line(name: str, results: Sequence[_GroupResult], clusters: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Means with intervals over clusters of conditions: of all, by class, by horizon; and counts by part."""
    verdicts = [verdict for result in results for verdict in result.verdicts]
    by_class: dict[str, list[_GroupResult]] = defaultdict(list)
    parts: dict[str, Bounds] = defaultdict(Bounds)
    for result in results:
        by_class[result.mechanics_class].append(result)
        for verdict in result.verdicts:
            for part, bounds in verdict.parts.items():
                parts[part] += bounds

    def told(members: Sequence[_GroupResult]) -> dict[str, Any]:
        lows = {r.condition_id: [v.low for v in r.verdicts] for r in members}
        return {**mean_of([v for r in members for v in r.verdicts]), "low_ci95": _interval(lows, clusters, seed)}

    return {
        "name": name,
        **told(results),
        "parts": {part: bounds.to_json() for part, bounds in sorted(parts.items())},
        "by_class": {kind: told(members) for kind, members in sorted(by_class.items())},
        "by_horizon": _by_horizon(results, clusters, seed) if any(v.horizon for v in verdicts) else [],
    }


def _by_horizon(results: Sequence[_GroupResult], clusters: Mapping[str, int], seed: int) -> list[dict[str, Any]]:
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


def _evaluator_line(evaluator: StateplayEvaluator, results: Sequence[_GroupResult]) -> dict[str, Any]:
    """Mean of every number of the checkout's evaluators, and what is missing."""
    rows: dict[str, list[float]] = defaultdict(list)
    for result in results:
        for values in result.values:
            for name, value in values.items():
                rows[name].append(value)
    return {
        "name": evaluator.name,
        "source_sha256": evaluator.source_sha256,
        "means": {name: float(np.mean(values)) for name, values in sorted(rows.items())},
        "videos": {name: len(values) for name, values in sorted(rows.items())},
        "missing": dict(evaluator.missing),
    }
