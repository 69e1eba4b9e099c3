"""The figures of a training run."""

from __future__ import annotations

from collections.abc import Sequence

from stateplay_rl.reporting.blocks import (
    BarChart,
    BarSeries,
    Chart,
    HeatChart,
    LineChart,
    Series,
    Threshold,
)
from stateplay_rl.reporting.numbers import finite, histogram
from stateplay_rl.reporting.run_data import (
    Evaluation,
    Gain,
    Record,
    RunData,
    column,
    names_under,
    reward_band,
    stage_name,
)

CANDIDATES = "candidates seen"
METRICS, HELDOUT, TIMINGS = "metrics.jsonl", "heldout.jsonl", "timings.jsonl"
POLICY_COLOURS = {"live": 0, "old": 2, "reference": 5}
SCORE_RANGE = (0.0, 100.0)


def _seen(records: Sequence[Record]) -> tuple[float, ...]:
    """x positions: candidates seen, or the line's number where it is missing."""
    return tuple(
        float(index) if value is None else value for index, value in enumerate(column(records, "candidates_seen"))
    )


def _metric_series(run: RunData, label: str, colour: int, *path: str, dashed: bool = False) -> Series:
    return Series(label, _seen(run.metrics), column(run.metrics, *path), colour, dashed=dashed)


def _has_values(series: Series) -> bool:
    return any(value is not None for value in series.y)


def metric_chart(
    run: RunData,
    key: str,
    title: str,
    y_label: str,
    parts: Sequence[tuple[str, tuple[str, ...]]],
    caption: str = "",
    thresholds: tuple[Threshold, ...] = (),
    y_range: tuple[float, float] | None = None,
) -> LineChart | None:
    """Lines of metrics.jsonl fields against candidates seen; None when no field has a value."""
    series = [_metric_series(run, label, index, *path) for index, (label, path) in enumerate(parts)]
    series = [line for line in series if _has_values(line)]
    if not series:
        return None
    fields = ", ".join(".".join(path) for label, path in parts if label in {s.label for s in series})
    source = f"{METRICS}: {fields}"
    return LineChart(key, title, CANDIDATES, y_label, tuple(series), source, caption, thresholds, y_range)


def heldout_series(evaluations: Sequence[Evaluation], label: str, colour: int, dashed: bool = False) -> Series:
    """Held-out reward of one policy with its 95 % interval."""
    return Series(
        label,
        tuple(float(e.candidates_seen) for e in evaluations),
        tuple(e.reward_mean for e in evaluations),
        colour,
        tuple(e.ci95[0] for e in evaluations),
        tuple(e.ci95[1] for e in evaluations),
        dashed,
    )


def reward_chart(run: RunData) -> LineChart:
    """Training and held-out reward, each with its 95 % band."""
    low, high = reward_band(run.metrics)
    several = len(run.heldout_judges) > 1
    series = [
        heldout_series(found, f"held-out, {policy}{f', by {judge}' if several else ''}", colour + 3 * place)
        for policy, colour in POLICY_COLOURS.items()
        for place, judge in enumerate(run.heldout_judges)
        if (found := run.evaluations_of(policy, judge))
    ]
    seen, rewards = _seen(run.metrics), column(run.metrics, "reward_mean")
    stages = run.stages
    for place, (stage, rows) in enumerate(stages):
        label = "training batches" if len(stages) == 1 else f"training, {stage_name(stage)}"
        part = slice(rows.start, rows.stop)
        series.append(
            Series(label, seen[part], rewards[part], (1, 6, 7)[place % 3], low[part], high[part], dashed=True)
        )
    return LineChart(
        "reward",
        "Reward against candidates seen",
        CANDIDATES,
        "score, 0 to 100",
        tuple(series),
        f"{HELDOUT}: reward_mean, ci95; {METRICS}: reward_mean, std_batch, std_within",
        "Bands are 95 %. Each training batch has other conditions: compare that line with itself only."
        + (" Lines of two judges lie on two scales." if several else ""),
    )


def class_chart(run: RunData) -> LineChart | None:
    """Held-out reward by mechanics class."""
    evaluations = run.followed
    names = sorted({name for e in evaluations for name in e.by_class})
    x = tuple(float(e.candidates_seen) for e in evaluations)
    series = tuple(
        Series(name, x, tuple(e.by_class.get(name) for e in evaluations), index) for index, name in enumerate(names)
    )
    if not series:
        return None
    title = f"Held-out reward by class, {run.policy} policy"
    return LineChart("classes", title, CANDIDATES, "score", series, f"{HELDOUT}: by_class")


def change_chart(gain: Gain) -> BarChart:
    """How many held-out conditions changed by how much."""
    edges = [float(edge) for edge in range(-100, 101, 10)]
    counts = histogram(list(gain.differences.values()), edges)
    used = [index for index, number in enumerate(counts) if number]
    first, last = min([*used, 8]), max([*used, 11])
    names = tuple(f"{edges[i]:+.0f}".replace("-", "\u2212") for i in range(first, last + 1))
    fell = tuple(float(counts[i]) if edges[i] < 0 else 0.0 for i in range(first, last + 1))
    rose = tuple(float(counts[i]) if edges[i] >= 0 else 0.0 for i in range(first, last + 1))
    return BarChart(
        "changes",
        "Change per held-out condition",
        "points, lower end of each bin of 10",
        "conditions",
        names,
        (BarSeries("lower than before", fell, 4), BarSeries("higher or equal", rose, 2)),
        f"{HELDOUT}: scores, batch {gain.after.batch} minus batch {gain.before.batch}",
        stacked=True,
    )


def share_chart(run: RunData) -> LineChart | None:
    """Tied, gated and failed groups as shares of the batch."""
    series = []
    for index, name in enumerate(("groups_tied", "groups_gated", "groups_failed")):
        values = tuple(
            None if part is None or not total else part / total
            for part, total in zip(column(run.metrics, name), column(run.metrics, "groups"), strict=True)
        )
        series.append(Series(name.removeprefix("groups_"), _seen(run.metrics), values, (5, 1, 4)[index]))
    series += [
        _metric_series(run, "scores at 0", 3, "scores_at_0", dashed=True),
        _metric_series(run, "scores at 100", 2, "scores_at_100", dashed=True),
    ]
    shown = tuple(line for line in series if _has_values(line))
    if not shown:
        return None
    return LineChart(
        "shares",
        "Groups that did not train, scores at the ends",
        CANDIDATES,
        "share",
        shown,
        f"{METRICS}: groups_tied, groups_gated, groups_failed over groups; scores_at_0, scores_at_100",
        "Tied: all candidates score alike, nothing to learn. Gated: left out of training, as failed groups (no answer "
        "of the judge) are. Gated groups stay on disk and are never drawn again.",
        y_range=(0.0, 0.1),
    )


def histogram_chart(run: RunData) -> HeatChart | None:
    """Optimality r over the batches: a column per batch, a row per tenth."""
    columns: list[str] = []
    values: list[tuple[float | None, ...]] = []
    for record in run.metrics:
        counts = record.get("r_histogram")
        if not isinstance(counts, list | tuple) or not counts:
            continue
        numbers = [finite(value) or 0.0 for value in counts]
        total = sum(numbers)
        columns.append(str(record.get("batch", len(columns))))
        values.append(tuple(value / total if total else None for value in numbers))
    if not columns or len({len(column_values) for column_values in values}) != 1:
        return None
    bins = len(values[0])
    rows = tuple(f"{index / bins:.1f}" for index in range(bins))
    return HeatChart(
        "r",
        "Optimality r by batch",
        "batch",
        "r, lower end of each bin",
        tuple(columns),
        rows,
        tuple(values),
        f"{METRICS}: r_histogram",
        "r is what a score becomes inside its group: 1 pulls towards a candidate, 0 pushes away, 0.5 carries no "
        "preference. Share of the batch's candidates; columns squeezed around 0.5 carry little signal.",
    )


def picture_charts(run: RunData) -> list[Chart]:
    """Luma, saturation and motion of candidates beside the real clips of the same conditions."""
    charts: list[Chart] = []
    for name in names_under(run.metrics, "picture"):
        lines = (
            _metric_series(run, "candidates", 0, "picture", name),
            _metric_series(run, "real clips", 5, "picture_real", name, dashed=True),
        )
        shown = tuple(line for line in lines if _has_values(line))
        if shown:
            source = f"{METRICS}: picture.{name}, picture_real.{name}"
            # A tenth around the data, so that a change of a hundredth does not look like a cliff.
            values = [value for line in shown for value in line.y if value is not None]
            span = (0.9 * min(values), 1.1 * max(values))
            title, label = name.capitalize(), f"{name}, levels of 0 to 255"
            chart = LineChart(f"picture-{name}", title, CANDIDATES, label, shown, source, y_range=span)
            charts.append(chart)
    return charts


def frozen_chart(evaluations: Sequence[Evaluation]) -> LineChart:
    """Share of held-out samples whose displays never move."""
    x = tuple(float(e.candidates_seen) for e in evaluations)
    series = Series("frozen displays", x, tuple(e.frozen_display_share for e in evaluations), 0)
    source = f"{HELDOUT}: frozen_display_share"
    return LineChart("frozen", "Frozen displays", CANDIDATES, "share of samples", (series,), source, y_range=(0, 0.1))
