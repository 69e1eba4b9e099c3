"""A training run as the report reads it: metrics, held-out evaluations, timings and alarms."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stateplay_rl.nft.statistics import Interval, bootstrap_conditions, paired_differences
from stateplay_rl.reporting.numbers import finite, mapping_of, mean

Record = Mapping[str, object]


@dataclass(frozen=True)
class Evaluation:
    """One held-out evaluation of one policy.

    Attributes:
        batch: batches done when it was made.
        judge_id: who scored it; empty in old runs.
        scores: scores of each condition's samples, None where a sample has no score.
        groups: folder of the evaluation's videos, relative to the run; empty if none was kept.
        referee: what the independent referee said; empty if there was none.
        evaluator: what the checkout's own evaluators said; empty if there were none.
        actions: which commanded moves happen; empty if nobody looked.
        picture_drift: picture measures beside those of the real clips; empty if there were none.
    """

    batch: int
    policy: str
    policy_sha256: str
    candidates_seen: int
    conditions: int
    samples: int
    reward_mean: float | None
    ci95: tuple[float | None, float | None]
    by_class: Mapping[str, float | None]
    frozen_display_share: float | None
    scores: Mapping[str, tuple[float | None, ...]]
    groups: str
    judge_id: str = ""
    referee: Mapping[str, object] = field(default_factory=dict)
    evaluator: Mapping[str, object] = field(default_factory=dict)
    actions: Mapping[str, object] = field(default_factory=dict)
    picture_drift: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: Record) -> Evaluation:
        """One line of heldout.jsonl."""
        interval = record.get("ci95")
        ends = interval if isinstance(interval, list | tuple) and len(interval) == 2 else (None, None)
        scores = {
            str(condition): tuple(finite(value) for value in values)
            for condition, values in mapping_of(record, "scores").items()
            if isinstance(values, list | tuple)
        }
        return cls(
            batch=count(record, "batch"),
            policy=str(record.get("policy", "")),
            policy_sha256=str(record.get("policy_sha256") or ""),
            candidates_seen=count(record, "candidates_seen"),
            conditions=count(record, "conditions") or len(scores),
            samples=count(record, "samples"),
            reward_mean=finite(record.get("reward_mean")),
            ci95=(finite(ends[0]), finite(ends[1])),
            by_class={name: finite(value) for name, value in mapping_of(record, "by_class").items()},
            frozen_display_share=finite(record.get("frozen_display_share")),
            scores=scores,
            groups=str(record.get("groups") or ""),
            judge_id=str(record.get("judge_id") or ""),
            referee=mapping_of(record, "referee"),
            evaluator=mapping_of(record, "evaluator"),
            actions=mapping_of(record, "actions"),
            picture_drift=mapping_of(record, "picture_drift"),
        )

    def condition_means(self) -> dict[str, float | None]:
        """Mean score of each condition over the samples that have one."""
        return {condition: mean(values) for condition, values in self.scores.items()}


@dataclass(frozen=True)
class Gain:
    """The change of the held-out reward from the first to the last evaluation of one policy."""

    before: Evaluation
    after: Evaluation
    interval: Interval
    differences: Mapping[str, float]


@dataclass(frozen=True)
class RunData:
    """Everything that a run's log files hold."""

    config: Mapping[str, object]
    metrics: tuple[Record, ...]
    evaluations: tuple[Evaluation, ...]
    timings: tuple[Record, ...]
    alarms: tuple[Record, ...]
    clusters: Mapping[str, int]

    @property
    def is_control(self) -> bool:
        """A run whose rewards were shuffled: its movement is drift, not learning."""
        return str(self.config.get("control", "none")) != "none"

    @property
    def policy(self) -> str:
        """The policy that held-out curves follow: the configured one, else the one with most evaluations."""
        wanted = str(mapping_of(self.config, "heldout").get("policy", ""))
        counts = Counter(evaluation.policy for evaluation in self.evaluations)
        if counts.get(wanted):
            return wanted
        return max(sorted(counts), key=lambda name: counts[name], default=wanted or "live")

    @property
    def stages(self) -> tuple[tuple[str, range], ...]:
        """Stage (`a`, `c`, `hand`) and the metrics' lines of each stretch of batches; old runs name no stage."""
        names = [str(record.get("stage") or "") for record in self.metrics]
        starts = [i for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
        ends = [*starts[1:], len(names)] if names else []
        return tuple((names[i], range(i, end)) for i, end in zip(starts, ends, strict=True))

    def evaluations_of(self, policy: str, judge_id: str | None = None) -> tuple[Evaluation, ...]:
        """Evaluations of one policy by batch, by one judge when it is named."""
        chosen = (e for e in self.evaluations if e.policy == policy and judge_id in (None, e.judge_id))
        return tuple(sorted(chosen, key=lambda e: e.batch))

    @property
    def heldout_judges(self) -> tuple[str, ...]:
        """Who scored the followed policy's held-out videos, in the order in which they came: stage C changes it."""
        return tuple(dict.fromkeys(e.judge_id for e in self.evaluations_of(self.policy)))

    @property
    def followed(self) -> tuple[Evaluation, ...]:
        """Evaluations that may be compared: of the followed policy, by the last judge that made two of them.

        Scores of two judges lie on different scales. When nobody made two, those of the last judge.
        """
        by_judge = [self.evaluations_of(self.policy, judge) for judge in self.heldout_judges]
        return next((own for own in reversed(by_judge) if len(own) > 1), by_judge[-1] if by_judge else ())

    def ends(self) -> tuple[Evaluation, Evaluation] | None:
        """The very first and last evaluation of the followed policy, whoever scored them: for people's eyes."""
        own = self.evaluations_of(self.policy)
        if len(own) == 1:
            own = (*(e for e in self.evaluations_of("reference")[:1] if e.batch <= own[0].batch), *own)
        return (own[0], own[-1]) if len(own) > 1 else None

    def gain(self) -> Gain | None:
        """Paired change from the first to the last evaluation of `followed`; None without two of them.

        When the followed policy was evaluated once only, the reference's evaluation stands for the start.
        """
        own = list(self.followed)
        if len(own) == 1:
            by_same = self.evaluations_of("reference", own[0].judge_id)
            own = [e for e in by_same if e.batch <= own[0].batch][:1] + own
        if len(own) < 2:
            return None
        before, after = own[0], own[-1]
        differences = paired_differences(before.condition_means(), after.condition_means())
        interval = bootstrap_conditions(differences, self.clusters)
        return None if interval is None else Gain(before, after, interval, differences)


def stage_name(stage: str) -> str:
    """`stage A`, `stage C`, `hand-made batches`."""
    return "hand-made batches" if stage == "hand" else f"stage {stage.upper()}"


def count(record: Record, key: str) -> int:
    """A whole number of a record; a missing one counts as 0 (nothing seen yet)."""
    value = finite(record.get(key))
    return 0 if value is None else int(value)


def column(records: Sequence[Record], *path: str) -> tuple[float | None, ...]:
    """One number per record, found by walking `path`; None where it is null or absent."""
    values: list[float | None] = []
    for record in records:
        step: object = record
        for key in path:
            step = step.get(key) if isinstance(step, Mapping) else None
        values.append(finite(step))
    return tuple(values)


def names_under(records: Sequence[Record], key: str) -> tuple[str, ...]:
    """All keys that occur in the objects under `key`, sorted."""
    return tuple(sorted({name for record in records for name in mapping_of(record, key)}))


def reward_band(
    metrics: Sequence[Record],
) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """95 % band of each batch's mean reward over its groups, from the logged deviations.

    The variance between groups is std_batch^2 - std_within^2 (law of total variance), so the standard
    error is its root over the square root of the number of judged groups. Normal approximation.
    """
    lows: list[float | None] = []
    highs: list[float | None] = []
    for record in metrics:
        centre, within, total = (finite(record.get(k)) for k in ("reward_mean", "std_within", "std_batch"))
        groups = count(record, "groups") - count(record, "groups_failed")
        if centre is None or within is None or total is None or groups < 2:
            lows.append(None)
            highs.append(None)
            continue
        half = 1.96 * math.sqrt(max(total**2 - within**2, 0.0) / groups)
        lows.append(centre - half)
        highs.append(centre + half)
    return tuple(lows), tuple(highs)
