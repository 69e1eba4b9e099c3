"""What people saw in a blind set, beside the judge: means of both policies, agreement, and people among themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from stateplay_rl.nft.statistics import Interval, bootstrap_conditions
from stateplay_rl.reporting.blocks import Block, Column, Section, Stat, StatRow, Table
from stateplay_rl.reporting.label_files import LabelledSet
from stateplay_rl.reporting.label_set import LabelItem, LabelKey, Side
from stateplay_rl.reporting.numbers import change, compact, mean, points, share
from stateplay_rl.stores import layout

Scores = Mapping[str, float]
_LEAD = (
    "People scored videos of both policies without knowing which is which. Their scores are the only ones here that no "
    "model and no program gave."
)


def label_section(labelled: LabelledSet, clusters: Mapping[str, int], number: int) -> Section:
    """The section of one labelled set.

    Args:
        clusters: cluster of each condition, for the intervals.
        number: position among the sets of the page, for its key.
    """
    key = labelled.key
    people = everybody(labelled)
    judge = {name: item.judge_score for name, item in key.items.items() if item.judge_score is not None}
    source = f"{', '.join(labels.file for labels in labelled.people)}; {layout.LABEL_KEY}"
    blocks: tuple[Block, ...] = (
        _stats(key, people, judge, clusters, source),
        _agreement_table(labelled, people, judge, number, source),
        _class_table(key, people, judge, number, source),
    )
    title = "Blind labels by people" if not number else f"Blind labels by people, set {number + 1}"
    return Section(f"labels-{number}" if number else "labels", title, blocks, _LEAD)


def everybody(labelled: LabelledSet) -> dict[str, float]:
    """Mean of all people's scores of each item that somebody scored."""
    found: dict[str, list[float]] = {}
    for labels in labelled.people:
        for name, score in labels.scores.items():
            found.setdefault(name, []).append(score)
    return {name: sum(values) / len(values) for name, values in found.items()}


def side_difference(key: LabelKey, scores: Scores, clusters: Mapping[str, int]) -> Interval | None:
    """Tested minus base in points, paired by condition and noise; None without a pair that is scored on both sides."""
    values: dict[str, list[float]] = {}
    for base, tested in pairs(key, scores):
        values.setdefault(key.items[base].condition_id, []).append(scores[tested] - scores[base])
    means = {condition: sum(found) / len(found) for condition, found in values.items()}
    return bootstrap_conditions(means, clusters)


def pairs(key: LabelKey, scores: Scores) -> list[tuple[str, str]]:
    """Items (base, tested) of the same condition and noise that both have a score."""
    sides: dict[tuple[str, int], dict[Side, str]] = {}
    for name, item in key.items.items():
        if name in scores:
            sides.setdefault((item.condition_id, item.candidate), {})[item.side] = name
    return [(both["base"], both["tested"]) for both in sides.values() if len(both) == 2]


def ordered_alike(key: LabelKey, first: Scores, second: Scores) -> tuple[float | None, int]:
    """Share of (base, tested) pairs that both order the same way (a tie is an order of its own), and their number."""
    common = [pair for pair in pairs(key, first) if pair[0] in second and pair[1] in second]
    if not common:
        return None, 0
    same = sum(1 for base, tested in common if _sign(first, base, tested) == _sign(second, base, tested))
    return same / len(common), len(common)


def _sign(scores: Scores, base: str, tested: str) -> int:
    left, right = round(scores[base]), round(scores[tested])
    return (right > left) - (right < left)


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's correlation; None when one side has no spread."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, ties share their mean."""
    order = np.asarray(values, dtype=np.float64)
    return [float((order < value).sum() + ((order == value).sum() + 1) / 2) for value in order]


def _stats(key: LabelKey, people: Scores, judge: Scores, clusters: Mapping[str, int], source: str) -> StatRow:
    gain, judged = (side_difference(key, scores, clusters) for scores in (people, judge))
    alike, count = ordered_alike(key, people, judge)
    stats = [
        Stat("videos scored", f"{len(people)} of {len(key.items)}", source),
        Stat("base, people", points(_side_mean(key, people, "base")), source),
        Stat("tested policy, people", points(_side_mean(key, people, "tested")), source),
        _difference("difference, people", gain, source),
        _difference("difference, judge", judged, f"{source}: judge_score"),
        Stat("pairs ordered alike", share(alike), source, f"people and judge, {count} pairs"),
    ]
    return StatRow(tuple(stats))


def _difference(label: str, gain: Interval | None, source: str) -> Stat:
    if gain is None:
        return Stat(label, points(None), source, "no condition was scored on both sides")
    ends = f"[{compact(gain.low, digits=1)}, {compact(gain.high, digits=1)}], {gain.clusters} clusters"
    return Stat(label, change(gain.mean), source, ends, "good" if gain.above_zero else "neutral")


def _side_mean(key: LabelKey, scores: Scores, side: Side) -> float | None:
    return mean(score for name, score in scores.items() if key.items[name].side == side)


def _agreement_table(labelled: LabelledSet, people: Scores, judge: Scores, number: int, source: str) -> Table:
    named = [(labels.labeller, labels.scores) for labels in labelled.people]
    compared = [(f"{name} and judge", scores, judge) for name, scores in named]
    if len(named) > 1:
        compared.append(("everybody and judge", people, judge))
        compared += [(f"{a} and {b}", first, second) for (a, first), (b, second) in combinations(named, 2)]
    columns = (
        Column("who"),
        Column("videos", True),
        Column("correlation", True, 3),
        Column("rank correlation", True, 3),
        Column("mean distance, points", True, 1),
        Column("second minus first", True, 1, signed=True),
        Column("pairs", True),
        Column("% pairs alike", True, 0),
    )
    rows = tuple(_agreement_row(name, labelled.key, first, second) for name, first, second in compared)
    note = "Pairs: base and tested policy on one condition with one noise; a tie is an order of its own."
    return Table(f"labels-agreement-{number}", "Agreement", columns, rows, source, note)


def _agreement_row(name: str, key: LabelKey, first: Scores, second: Scores) -> tuple[str | float | None, ...]:
    common = sorted(first.keys() & second.keys())
    left, right = [first[item] for item in common], [second[item] for item in common]
    alike, count = ordered_alike(key, first, second)
    differences = [b - a for a, b in zip(left, right, strict=True)]
    return (
        name,
        len(common),
        correlation(left, right),
        correlation(ranks(left), ranks(right)),
        mean(abs(value) for value in differences),
        mean(differences),
        count,
        None if alike is None else 100 * alike,
    )


def _class_table(key: LabelKey, people: Scores, judge: Scores, number: int, source: str) -> Table:
    rows = []
    for name in sorted({item.mechanics_class for item in key.items.values()}):
        row: list[str | float | None] = [name]
        for side in ("base", "tested"):
            members = [item for item, of in key.items.items() if _belongs(of, name, side)]
            row += [
                len([item for item in members if item in people]),
                mean(people[item] for item in members if item in people),
                mean(judge[item] for item in members if item in judge),
            ]
        rows.append(tuple(row))
    columns = (
        Column("class"),
        Column("base, scored", True),
        Column("people", True, 1),
        Column("judge", True, 1),
        Column("tested, scored", True),
        Column("people", True, 1),
        Column("judge", True, 1),
    )
    return Table(f"labels-classes-{number}", "By class", columns, tuple(rows), source)


def _belongs(item: LabelItem, name: str, side: str) -> bool:
    return item.mechanics_class == name and item.side == side
