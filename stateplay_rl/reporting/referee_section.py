"""What the independent referee saw: beside the judge's curve, never added to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stateplay_rl.reporting.blocks import Block, ChartGrid, Column, LineChart, Number, Prose, Section, Series, Table
from stateplay_rl.reporting.json_files import objects_of, optional_object
from stateplay_rl.reporting.numbers import finite, mapping_of
from stateplay_rl.reporting.run_data import Evaluation, RunData
from stateplay_rl.reporting.sources import Source
from stateplay_rl.stores import layout

HELDOUT = "heldout.jsonl"
_LEAD = (
    "Read off the videos, not the training reward. The lower bound counts what could not be read as wrong, the upper "
    "one leaves it out. A judge that rises while the referee falls is being fooled."
)


def referee_section(run: RunData) -> Section | None:
    """The held-out referee's curve and last verdict, commanded moves, the checkout's evaluators; None without any."""
    evaluations = run.evaluations_of(run.policy)
    told = [e for e in evaluations if e.referee]
    blocks: list[Block] = []
    if told:
        blocks.append(ChartGrid((_curve(told), _coverage(told))))
        blocks.append(_parts(told[-1]))
        blocks += [table for table in (_classes(told), _horizon(told)) if table is not None]
    looked = [e for e in evaluations if e.actions]
    if looked:
        blocks += _actions(looked)
    answered = [e for e in evaluations if e.evaluator]
    if answered:
        blocks += _evaluator(answered)
    return Section("referee", "Independent referee", tuple(blocks), _LEAD) if blocks else None


def _seen(evaluations: Sequence[Evaluation]) -> tuple[float, ...]:
    return tuple(float(e.candidates_seen) for e in evaluations)


def _curve(told: Sequence[Evaluation]) -> LineChart:
    x = _seen(told)
    low = tuple(finite(e.referee.get("low")) for e in told)
    high = tuple(finite(e.referee.get("high")) for e in told)
    judges = tuple(dict.fromkeys(e.judge_id for e in told))
    series = [
        Series("referee, unreadable left out", x, high, 2, dashed=True),
        Series("referee, unreadable counted wrong", x, low, 0),
    ]
    for place, judge in enumerate(judges):
        own = [e for e in told if e.judge_id == judge]
        label = "judge (held-out reward)" if len(judges) == 1 else f"judge {judge}"
        series.append(Series(label, _seen(own), tuple(e.reward_mean for e in own), (5, 3)[place % 2], dashed=True))
    name = str(told[-1].referee.get("name", "referee"))
    source = f"{HELDOUT}: referee.low, referee.high, reward_mean"
    same = all(value == e.reward_mean for value, e in zip(low, told, strict=True))
    caption = "The referee itself is this run's judge, so the lines lie on each other." if same else ""
    title = f"{name} beside the judge"
    return LineChart("referee", title, "candidates seen", "points, 0 to 100", tuple(series), source, caption)


def _coverage(told: Sequence[Evaluation]) -> LineChart:
    values = tuple(finite(e.referee.get("coverage")) for e in told)
    series = (Series("read", _seen(told), values, 0),)
    source = f"{HELDOUT}: referee.coverage"
    title = "Share of the display that could be read"
    return LineChart("referee-coverage", title, "candidates seen", "share", series, source, y_range=(0.0, 1.0))


def _parts(last: Evaluation) -> Table:
    rows = [_bounds_row(name, mapping_of(mapping_of(last.referee, "parts"), name)) for name in _names(last, "parts")]
    columns = (
        Column("part"),
        Column("right", True, 0),
        Column("wrong", True, 0),
        Column("unreadable", True, 0),
        Column("lower bound", True, 3),
        Column("upper bound", True, 3),
    )
    return Table("referee-parts", "Last evaluation, by part", columns, tuple(rows), f"{HELDOUT}: referee.parts")


def _classes(told: Sequence[Evaluation]) -> Table | None:
    """The referee's points by mechanics class, first and last evaluation."""
    first, last = (mapping_of(e.referee, "by_class") for e in (told[0], told[-1]))
    if not last:
        return None
    rows = tuple((name, *_first_and_last(mapping_of(first, name), mapping_of(last, name))) for name in sorted(last))
    columns = (Column("class"), *_FIRST_AND_LAST)
    return Table("referee-classes", "Referee by class", columns, rows, f"{HELDOUT}: referee.by_class")


def _horizon(told: Sequence[Evaluation]) -> Table | None:
    """The referee's points by quarter of the video, first and last evaluation."""
    first, last = (objects_of(e.referee, "by_horizon") for e in (told[0], told[-1]))
    rows = []
    for number, quarter in enumerate(last):
        before = first[number] if number < len(first) else {}
        tracked = mapping_of(quarter, "tracked")
        agree = (finite(tracked.get("low")), finite(tracked.get("high")))
        rows.append((_frames(quarter), *_first_and_last(before, quarter), *agree))
    if not rows:
        return None
    columns = (
        Column("frames"),
        *_FIRST_AND_LAST,
        Column("values as true, lower", True, 3),
        Column("upper", True, 3),
    )
    note = "Quarters of the videos. A judge gives one score a video and has no such row."
    title = "Referee by horizon"
    return Table("referee-horizon", title, columns, tuple(rows), f"{HELDOUT}: referee.by_horizon", note)


_FIRST_AND_LAST = (
    Column("videos", True, 0),
    Column("first, lower bound", True, 1),
    Column("last, lower bound", True, 1),
    Column("95 % low", True, 1),
    Column("95 % high", True, 1),
    Column("last, upper bound", True, 1),
    Column("read", True, 3),
)


def _first_and_last(first: Mapping[str, object], last: Mapping[str, object]) -> tuple[float | None, ...]:
    interval = last.get("low_ci95")
    ends = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
    return (
        finite(last.get("videos")),
        finite(first.get("low")),
        finite(last.get("low")),
        finite(ends[0]),
        finite(ends[1]),
        finite(last.get("high")),
        finite(last.get("coverage")),
    )


def _frames(quarter: Mapping[str, object]) -> str:
    frames = quarter.get("frames")
    start, end = frames if isinstance(frames, list) and len(frames) == 2 else ("?", "?")
    return f"{start} to {end}"


def _names(evaluation: Evaluation, key: str) -> list[str]:
    return sorted(mapping_of(evaluation.referee, key))


def _bounds_row(name: str, bounds: Mapping[str, object]) -> tuple[str | Number, ...]:
    keys = ("right", "wrong", "unreadable", "low", "high")
    return (name, *(finite(bounds.get(key)) for key in keys))


def _actions(looked: Sequence[Evaluation]) -> list[Block]:
    """Commanded moves that happen, first and last evaluation; what a failed calibration withholds is named."""
    first, last = (mapping_of(e.actions, "obeyed") for e in (looked[0], looked[-1]))
    real, rows = mapping_of(looked[-1].actions, "real"), []
    for probe in sorted(last):
        before, after, clips = (mapping_of(part, probe) for part in (first, last, real))
        counts = [finite(after.get(key)) for key in ("right", "wrong", "unreadable")]
        shares = [before.get("low"), after.get("low"), after.get("high"), clips.get("low")]
        rows.append((probe, *counts, *(finite(share) for share in shares)))
    columns = (
        Column("move"),
        Column("obeyed", True, 0),
        Column("not", True, 0),
        Column("unreadable", True, 0),
        Column("first, lower bound", True, 3),
        Column("last, lower bound", True, 3),
        Column("last, upper bound", True, 3),
        Column("real clips", True, 3),
    )
    title = "Do commanded moves happen?"
    blocks: list[Block] = [Table("actions", title, columns, tuple(rows), f"{HELDOUT}: actions")] if rows else []
    withheld = mapping_of(looked[-1].actions, "withheld")
    if withheld:
        named = "; ".join(f"{probe}: {reason}" for probe, reason in sorted(withheld.items()))
        blocks.append(Prose(f"Withheld, because the calibration on real clips failed: {named}.", "caution"))
    return blocks


def _evaluator(answered: Sequence[Evaluation]) -> list[Block]:
    first, last = answered[0].evaluator, answered[-1].evaluator
    means = mapping_of(last, "means")
    rows = tuple(
        (name, finite(mapping_of(first, "means").get(name)), finite(means.get(name))) for name in sorted(means)
    )
    columns = (Column("metric"), Column("first", True, 3), Column("last", True, 3))
    title = "The checkout's own evaluators"
    blocks: list[Block] = [Table("evaluator", title, columns, rows, f"{HELDOUT}: evaluator.means")]
    missing = mapping_of(last, "missing")
    if missing:
        named = "; ".join(f"{name}: {reason}" for name, reason in sorted(missing.items()))
        blocks.append(Prose(f"Missing in the checkout: {named}.", "caution"))
    return blocks


def drift_table(run: RunData) -> Table | None:
    """Picture measures of the first and last held-out videos beside the real clips'; None without real clips."""
    told = [e for e in run.evaluations_of(run.policy) if e.picture_drift]
    if not told:
        return None
    first, last = told[0].picture_drift, told[-1].picture_drift
    rows = []
    for name in sorted(mapping_of(last, "real")):
        values = [mapping_of(part, key).get(name) for part, key in ((last, "real"), (first, "generated"))]
        values += [mapping_of(last, key).get(name) for key in ("generated", "ratio")]
        rows.append((name, *(finite(value) for value in values)))
    columns = (
        Column("measure"),
        Column("real clips", True, 2),
        Column("first evaluation", True, 2),
        Column("last evaluation", True, 2),
        Column("last / real", True, 3),
    )
    title = "Held-out pictures beside the real clips of the same conditions"
    return Table("picture-drift", title, columns, tuple(rows), f"{HELDOUT}: picture_drift")


def drift_by_horizon(run: RunData) -> Table | None:
    """Last held-out videos over the real clips, quarter by quarter: pictures fade towards the end of a rollout."""
    told = [e for e in run.evaluations_of(run.policy) if objects_of(e.picture_drift, "by_horizon")]
    if not told:
        return None
    ratios = [mapping_of(quarter, "ratio") for quarter in objects_of(told[-1].picture_drift, "by_horizon")]
    names = sorted({name for ratio in ratios for name in ratio})
    rows = tuple((name, *(finite(ratio.get(name)) for ratio in ratios)) for name in names)
    columns = (Column("measure"), *(Column(f"quarter {k + 1}", True, 3) for k in range(len(ratios))))
    title = "Last evaluation over the real clips, by quarter of the video"
    return Table("picture-horizon", title, columns, rows, f"{HELDOUT}: picture_drift.by_horizon")


def hud_check_section(source: Source) -> Section | None:
    """First frames against the state columns; None where nothing was compared."""
    check = mapping_of(optional_object(source.path, layout.SUMMARY), "hud_check")
    by_element = mapping_of(check, "by_element")
    if not by_element:
        return None
    rows = tuple(_bounds_row(name, mapping_of(by_element, name)) for name in by_element)
    columns = (
        Column("element"),
        Column("agree", True, 0),
        Column("disagree", True, 0),
        Column("unreadable", True, 0),
        Column("lower bound", True, 3),
        Column("upper bound", True, 3),
    )
    source_name = f"{layout.SUMMARY}: hud_check"
    blocks: list[Block] = [Table("hud-check", "By element", columns, rows, source_name)]
    examples = check.get("examples")
    if isinstance(examples, list) and examples:
        keys = ("condition_id", "element", "true", "low", "high")
        shown = tuple(tuple(_cell(mapping_of({"row": row}, "row").get(key)) for key in keys) for row in examples)
        heads = (Column("condition", mono=True), Column("element"), *(Column(k, True, 1) for k in keys[2:]))
        blocks.append(Table("hud-disagreements", "Examples of disagreement", heads, shown, source_name))
    lead = f"HP, meters and clock read off each first frame ({check.get('reader')}), against the state columns."
    return Section("hud-check", "First frames against the state columns", tuple(blocks), lead)


def _cell(value: object) -> str | Number:
    return value if isinstance(value, str) else finite(value)
