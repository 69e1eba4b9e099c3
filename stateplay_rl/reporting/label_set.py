"""A blind set of videos for people: of the base and of the tested policy, the same conditions, order shuffled.

The page and its file names say nothing about the policy; who made what stands in ``key.json`` only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stateplay_rl.errors import CorruptionError, InputError, UsageError
from stateplay_rl.reporting.cards import spread_choice
from stateplay_rl.reporting.json_files import read_object
from stateplay_rl.reporting.run_data import Evaluation, RunData
from stateplay_rl.reporting.run_files import heldout_groups
from stateplay_rl.reporting.sources import Source
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_json
from stateplay_rl.stores.groups import StoredGroup

VERSION = 1
Side = Literal["base", "tested"]


@dataclass(frozen=True)
class LabelItem:
    """One video of the set, and what a person must not know.

    Attributes:
        judge_score: what the run's judge gave it, points; None without a score.
    """

    side: Side
    policy_sha256: str
    condition_id: str
    mechanics_class: str
    group_id: str
    candidate: int
    video_sha256: str
    judge_score: float | None


@dataclass(frozen=True)
class LabelKey:
    """Names of the page (``001``, ...) and the videos behind them."""

    run_id: str
    seed: int
    items: Mapping[str, LabelItem]

    @property
    def set_sha256(self) -> str:
        """Identity of the set: the videos by name."""
        return sha256_json({name: item.video_sha256 for name, item in self.items.items()})

    def to_json(self) -> dict[str, Any]:
        """As it is stored in ``key.json``."""
        items = {name: asdict(item) for name, item in self.items.items()}
        return {
            "version": VERSION,
            "set_sha256": self.set_sha256,
            "run_id": self.run_id,
            "seed": self.seed,
            "items": items,
        }


@dataclass(frozen=True)
class LabelSet:
    """The key, and the stored group of each item."""

    key: LabelKey
    groups: Mapping[str, StoredGroup]


def choose_label_set(source: Source, run: RunData, count: int, seed: int) -> LabelSet:
    """`count` videos of a run's first and last held-out evaluation, in a shuffled order.

    The judge's scores go into the key where both evaluations have the same judge; else only the last one's do, because
    two judges' scores lie on two scales. Conditions are taken class by class in turn; both sides show the same
    conditions and the same noise, so that they can be compared in pairs. An odd count gives the tested policy one more.

    Raises:
        UsageError: fewer than two evaluations with videos, or not so many videos.
    """
    ends = run.ends()
    if ends is None:
        raise UsageError(
            f"{source.path} has no two held-out evaluations to compare",
            "give a run with held-out evaluations (heldout.conditions) to --label-set",
        )
    first, last = ends
    before, after = heldout_groups(source, first), heldout_groups(source, last)
    slots = _slots([before[c] for c in sorted(before.keys() & after.keys())], first, last)
    judged = first if first.judge_id == last.judge_id else replace(first, scores={})
    if len(slots) < count - count // 2 or count < 2:
        raise UsageError(
            f"--label-set {count}: both evaluations of {source.path} hold {len(slots)} videos",
            f"ask for 2 to {2 * len(slots)} videos" if slots else "the evaluations' videos were not kept",
        )
    sides: tuple[tuple[Side, Mapping[str, StoredGroup], Evaluation, int], ...] = (
        ("base", before, judged, count // 2),
        ("tested", after, last, count - count // 2),
    )
    chosen = [
        (_item(side, groups[condition], candidate, evaluation), groups[condition])
        for side, groups, evaluation, wanted in sides
        for condition, candidate in slots[:wanted]
    ]
    run_id = source.manifest.run_id if source.manifest is not None else ""
    random.Random(f"label set {seed} {run_id}").shuffle(chosen)
    width = max(3, len(str(count)))
    names = [f"{number + 1:0{width}d}" for number in range(len(chosen))]
    items = {name: item for name, (item, _) in zip(names, chosen, strict=True)}
    groups = {name: group for name, (_, group) in zip(names, chosen, strict=True)}
    return LabelSet(LabelKey(run_id, seed, items), groups)


def _slots(groups: Sequence[StoredGroup], before: Evaluation, after: Evaluation) -> list[tuple[str, int]]:
    """Conditions by class in turn, each with its first sample, then again with the second, and so on."""
    samples = min((len(group.record.seeds) for group in groups), default=0)
    samples = min(samples, before.samples, after.samples)
    by_class: dict[str, list[StoredGroup]] = {}
    for group in groups:
        by_class.setdefault(group.record.mechanics_class, []).append(group)
    queues = [[members[i] for i in spread_choice(members, len(members))] for _, members in sorted(by_class.items())]
    order = [
        queue[turn].record.condition_id
        for turn in range(max(map(len, queues), default=0))
        for queue in queues
        if turn < len(queue)
    ]
    return [(condition, sample) for sample in range(samples) for condition in order]


def _item(side: Side, group: StoredGroup, candidate: int, evaluation: Evaluation) -> LabelItem:
    record = group.record
    scores = evaluation.scores.get(record.condition_id, ())
    return LabelItem(
        side,
        record.policy_sha256,
        record.condition_id,
        record.mechanics_class,
        record.group_id,
        candidate,
        group.files[layout.candidate_video_file(candidate)],
        scores[candidate] if candidate < len(scores) else None,
    )


def is_of_run(key: LabelKey, source: Source, run: RunData) -> bool:
    """Whether the set was taken from this run: its held-out evaluations hold every group of the key."""
    folders = [source.path / evaluation.groups for evaluation in run.evaluations if evaluation.groups]
    wanted = {item.group_id for item in key.items.values()}
    return all(any((folder / group_id / layout.GROUP).is_file() for folder in folders) for group_id in wanted)


def read_key(file: Path) -> LabelKey:
    """The key of a blind page.

    Raises:
        InputError: not there.
        CorruptionError: damaged, or changed since it was written.
    """
    if not file.is_file():
        raise InputError(
            f"the key that says whose videos were scored is not there: {file}",
            f"it was written with the blind page: --label-key REPORT/{layout.LABELS_FOLDER}/{layout.LABEL_KEY}",
        )
    value = read_object(file.parent, file.name)
    try:
        items = {str(name): LabelItem(**item) for name, item in value["items"].items()}
        key = LabelKey(str(value["run_id"]), int(value["seed"]), items)
        recorded = value["set_sha256"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(f"{file} is not the key of a blind page: {error}", "give the right file") from error
    if key.set_sha256 != recorded:
        raise CorruptionError(f"{file}: field 'set_sha256' does not match its items", "restore it from a copy")
    return key
