"""The same charts as PNG files, for slides and readmes."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stateplay_rl.reporting.blocks import BarChart, Chart, HeatChart, LineChart
from stateplay_rl.reporting.svg import line_limits

PALETTE = ("#2f6690", "#c8762e", "#3f8f6b", "#8a5a9e", "#b5494e", "#7a7f87", "#a58a2f", "#4a9aa8")
INK, FAINT = "#30343b", "#e3e5e8"


def render_png(chart: Chart) -> bytes:
    """The chart as PNG bytes; equal charts give equal bytes (no date, no software stamp)."""
    figure = Figure(figsize=(6.4, 3.8), dpi=150, facecolor="white", layout="tight")
    axes = figure.add_subplot()
    _style(axes, chart)
    if isinstance(chart, LineChart):
        _draw_lines(axes, chart)
    elif isinstance(chart, BarChart):
        _draw_bars(axes, chart)
    else:
        _draw_heat(axes, chart)
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        axes.legend(handles, labels, frameon=False, fontsize=8, labelcolor=INK)
    target = io.BytesIO()
    figure.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()


def _style(axes: Axes, chart: Chart) -> None:
    axes.set_title(chart.title, loc="left", fontsize=11, color=INK, pad=10)
    axes.set_xlabel(chart.x_label, fontsize=9, color=INK)
    axes.set_ylabel(chart.y_label, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    if chart.kind != "heat":
        axes.grid(axis="y", color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)


def _gap(values: tuple[float | None, ...]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _draw_lines(axes: Axes, chart: LineChart) -> None:
    for series in chart.series:
        colour = PALETTE[series.colour % len(PALETTE)]
        if series.low and series.high:
            axes.fill_between(series.x, _gap(series.low), _gap(series.high), color=colour, alpha=0.15, lw=0)
        axes.plot(
            series.x,
            _gap(series.y),
            color=colour,
            linewidth=1.8,
            linestyle="--" if series.dashed else "-",
            marker="o" if len(series.x) <= 30 else None,
            markersize=3.5,
            label=series.label,
        )
    low, high = line_limits(chart)
    for threshold in chart.thresholds:
        if low <= threshold.value <= high:
            axes.axhline(threshold.value, color="#b5494e", linewidth=1, linestyle=":")
    if chart.y_range:
        axes.set_ylim(min(low, chart.y_range[0]), max(high, chart.y_range[1]))


def _draw_bars(axes: Axes, chart: BarChart) -> None:
    positions = range(len(chart.categories))
    lanes = 1 if chart.stacked else max(1, len(chart.series))
    bar = 0.78 / lanes
    base = [0.0] * len(chart.categories)
    for lane, series in enumerate(chart.series):
        values = [value or 0.0 for value in series.values]
        centres = [p if chart.stacked else p + (lane - (lanes - 1) / 2) * bar for p in positions]
        axes.bar(
            centres,
            values,
            bar,
            bottom=base if chart.stacked else None,
            color=PALETTE[series.colour % len(PALETTE)],
            label=series.label,
        )
        if chart.stacked:
            base = [b + v for b, v in zip(base, values, strict=True)]
    stride = max(1, -(-len(chart.categories) // 12))
    axes.set_xticks(list(positions)[::stride], list(chart.categories)[::stride])


def _draw_heat(axes: Axes, chart: HeatChart) -> None:
    if not chart.values:
        return
    grid = [[column[row] or 0.0 for column in chart.values] for row in range(len(chart.rows))]
    axes.imshow(grid, origin="lower", aspect="auto", cmap="Blues", interpolation="nearest")
    stride = max(1, -(-len(chart.columns) // 12))
    axes.set_xticks(list(range(len(chart.columns)))[::stride], list(chart.columns)[::stride])
    axes.set_yticks(range(len(chart.rows)), list(chart.rows))
