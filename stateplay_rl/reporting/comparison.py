"""Several runs side by side, for example a run and its shuffled-reward control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stateplay_rl.config.base import changed_keys
from stateplay_rl.nft.statistics import bootstrap_conditions
from stateplay_rl.reporting.blocks import (
    Alarm,
    Block,
    ChartGrid,
    Column,
    Headline,
    LineChart,
    Section,
    Series,
    Table,
)
from stateplay_rl.reporting.numbers import change, finite, plural
from stateplay_rl.reporting.run_charts import CANDIDATES, heldout_series
from stateplay_rl.reporting.run_data import RunData, column
from stateplay_rl.reporting.sources import Source
from stateplay_rl.reporting.verdict import gather_alarms, run_headline

NamedRun = tuple[Source, RunData]


def find_control(runs: Sequence[NamedRun]) -> RunData | None:
    """The control among the runs; with several, the one whose name comes first."""
    controls = sorted((pair for pair in runs if pair[1].is_control), key=lambda pair: pair[0].name)
    return controls[0][1] if controls else None


def comparison_headline(runs: Sequence[NamedRun]) -> Headline:
    """The verdict of the first run beside the control, or of the first two runs beside each other."""
    control = find_control(runs)
    main = [pair for pair in runs if not pair[1].is_control]
    if main and control is not None:
        whole = run_headline(main[0][1], main[0][0].finished, control)
        return replace(whole, sentences=whole.sentences[:2])
    if len(main) < 2:
        return Headline("Controls only", "neutral", ("Only control runs were given: their movement is drift.",))
    return _pair_headline(main[0], main[1])


def _pair_headline(left: NamedRun, right: NamedRun) -> Headline:
    gains = [run.gain() for _, run in (left, right)]
    first, second = gains
    if first is None or second is None:
        return Headline(
            "Not comparable yet",
            "neutral",
            ("At least one of the runs has fewer than two held-out evaluations.",),
        )
    sentences = [
        f"{source.name}: {change(gain.interval.mean, (gain.interval.low, gain.interval.high))} points."
        for (source, _), gain in ((left, first), (right, second))
    ]
    shared = sorted(set(first.differences) & set(second.differences))
    excess = bootstrap_conditions(
        {key: first.differences[key] - second.differences[key] for key in shared}, left[1].clusters
    )
    if excess is None:
        return Headline("No common held-out conditions", "caution", tuple(sentences))
    ends = (excess.low, excess.high)
    sentences.append(f"Difference on the same {plural(len(shared), 'condition')}: {change(excess.mean, ends)} points.")
    sentences.append("No control run stands beside them.")
    verdict = f"{left[0].name} gained more" if excess.above_zero else f"{right[0].name} gained more"
    if not excess.above_zero and not excess.below_zero:
        verdict = "No measurable difference between the runs"
    return Headline(verdict, "caution", tuple(sentences))


def comparison_alarms(runs: Sequence[NamedRun]) -> tuple[Alarm, ...]:
    """Every alarm of every run, with the run's name, severe ones first."""
    found = [
        replace(alarm, name=f"{alarm.name} ({source.name})")
        for source, run in runs
        for alarm in gather_alarms(run.alarms)
    ]
    return tuple(sorted(found, key=lambda alarm: alarm.severity))


def comparison_section(runs: Sequence[NamedRun]) -> Section:
    """Held-out and training curves of all runs, their figures, and what differs in their configs."""
    order = sorted(runs, key=lambda pair: pair[1].is_control)
    colours = [5 if run.is_control else (0, 2, 3, 1, 6, 7)[index % 6] for index, (_, run) in enumerate(order)]
    heldout = tuple(
        heldout_series(run.followed, source.name, colour, run.is_control)
        for (source, run), colour in zip(order, colours, strict=True)
        if run.followed
    )
    training = tuple(
        Series(
            source.name,
            tuple(finite(record.get("candidates_seen")) or 0.0 for record in run.metrics),
            column(run.metrics, "reward_mean"),
            colour,
            dashed=run.is_control,
        )
        for (source, run), colour in zip(order, colours, strict=True)
        if run.metrics
    )
    trained = [run for _, run in order if run.metrics]
    distance, spread = (
        tuple(replace(series, y=column(run.metrics, field)) for series, run in zip(training, trained, strict=True))
        for field in ("distance_live_reference", "std_within")
    )
    blocks: list[Block] = [
        ChartGrid(
            (
                _chart("heldout", "Held-out reward", "score", heldout, "heldout.jsonl: reward_mean, ci95"),
                _chart("training", "Training reward", "score", training, "metrics.jsonl: reward_mean"),
                _chart(
                    "distance",
                    "Distance to the reference",
                    "Euclidean, trained weights",
                    distance,
                    "metrics.jsonl: distance_live_reference",
                ),
                _chart("spread", "Spread within groups", "points", spread, "metrics.jsonl: std_within"),
            )
        ),
        _gain_table(order),
    ]
    differences = _config_table(order)
    if differences is not None:
        blocks.append(differences)
    return Section("compare", "Side by side", tuple(blocks))


def _chart(key: str, title: str, y_label: str, series: tuple[Series, ...], source: str) -> LineChart:
    return LineChart(key, title, CANDIDATES, y_label, series, source)


def _gain_table(runs: Sequence[NamedRun]) -> Table:
    rows: list[tuple[str | float | None, ...]] = []
    for source, run in runs:
        gain = run.gain()
        kind = "control" if run.is_control else "run"
        severe = sum(1 for alarm in run.alarms if alarm.get("severity") == "alarm")
        tail = (len(run.metrics), severe, len(run.alarms) - severe)
        if gain is None:
            rows.append((source.name, kind, None, None, None, None, None, *tail))
            continue
        interval = gain.interval
        rows.append(
            (
                source.name,
                kind,
                gain.before.reward_mean,
                gain.after.reward_mean,
                interval.mean,
                interval.low,
                interval.high,
                *tail,
            )
        )
    columns = (
        Column("run"),
        Column("kind"),
        Column("before", True, 1),
        Column("after", True, 1),
        Column("gain", True, 1, signed=True),
        Column("95 % low", True, 1),
        Column("95 % high", True, 1),
        Column("batches", True, 0),
        Column("alarms", True, 0),
        Column("warnings", True, 0),
    )
    return Table("gains", "Held-out gain", columns, tuple(rows), "heldout.jsonl: scores; metrics.jsonl; alarms.jsonl")


def _config_table(runs: Sequence[NamedRun]) -> Table | None:
    """Config keys in which a later run differs from the first."""
    (base, _), *rest = runs
    rows: list[tuple[str, ...]] = []
    for source, _ in rest:
        for key, (left, right) in changed_keys(base.config, source.config).items():
            rows.append((source.name, key, str(left), str(right)))
    if not rows:
        return None
    columns = (Column("run"), Column("key", mono=True), Column(base.name), Column("here"))
    return Table("config", f"What differs from {base.name}", columns, tuple(rows), "config.yaml")
