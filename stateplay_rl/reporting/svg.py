"""Charts as inline SVG. Colours are CSS classes, so that one drawing serves light and dark pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from stateplay_rl.reporting.blocks import BarChart, Chart, HeatChart, LineChart, Series
from stateplay_rl.reporting.numbers import compact, tick_labels, ticks

HEIGHT = 264
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 46, 14, 12, 40
MAX_HOVER_POINTS = 160
LABEL_WIDTH = 38


@dataclass(frozen=True)
class Scale:
    """A linear map from data to drawing units."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 2)


def render_svg(chart: Chart, columns: int = 2) -> str:
    """The chart as an ``<svg>`` element; text is escaped, the legend is left to the page.

    Args:
        columns: charts beside each other; the drawing gets narrower, its text keeps its size.
    """
    width = 960 // columns if columns < 3 else 352
    draw: dict[str, Callable[[float], str]] = {
        "line": lambda w: _line_chart(chart, w) if isinstance(chart, LineChart) else "",
        "bar": lambda w: _bar_chart(chart, w) if isinstance(chart, BarChart) else "",
        "heat": lambda w: _heat_chart(chart, w) if isinstance(chart, HeatChart) else "",
    }
    body = draw[chart.kind](width)
    label = escape(f"{chart.title}: {chart.y_label} by {chart.x_label}", quote=True)
    name = "chart wide" if columns < 3 else "chart"
    return (
        f'<svg class="{name}" viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{label}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{round(x, 1)}" y="{round(y, 1)}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _frame(chart: Chart, width: float, y_scale: Scale, y_ticks: Sequence[float]) -> list[str]:
    """Horizontal grid lines, y labels and axis titles."""
    parts = []
    for value, label in zip(y_ticks, tick_labels(y_ticks), strict=True):
        y = y_scale(value)
        parts.append(f'<line class="grid" x1="{MARGIN_LEFT}" x2="{width - MARGIN_RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(MARGIN_LEFT - 7, y + 4, label, "end"))
    centre = (MARGIN_LEFT + width - MARGIN_RIGHT) / 2
    parts.append(_text(centre, HEIGHT - 5, chart.x_label, extra=' class="axis"'))
    return parts


def line_limits(chart: LineChart) -> tuple[float, float]:
    """Lowest and highest drawn y value: data, bands, thresholds near the data, and `y_range`."""
    values = [v for s in chart.series for part in (s.y, s.low, s.high) for v in part if v is not None]
    values += list(chart.y_range or ())
    if not values:
        return 0.0, 1.0
    span = max(values) - min(values) or abs(max(values)) or 1.0
    near = [t.value for t in chart.thresholds if min(values) - span <= t.value <= max(values) + span]
    return min(values + near), max(values + near)


def _line_chart(chart: LineChart, width: float) -> str:
    xs = [x for series in chart.series for x in series.x]
    if not any(value is not None for series in chart.series for value in series.y):
        return _text(width / 2, HEIGHT / 2, "no values yet", extra=' class="axis"')
    y_ticks = ticks(*line_limits(chart))
    y_scale = Scale(y_ticks[0], y_ticks[-1], HEIGHT - MARGIN_BOTTOM, MARGIN_TOP)
    low_x, high_x = min(xs), max(xs)
    x_scale = Scale(low_x, high_x, MARGIN_LEFT + 6, width - MARGIN_RIGHT - 6)
    parts = _frame(chart, width, y_scale, y_ticks)
    wanted = 6 if width > 400 else 5
    marks = [low_x] if low_x == high_x else [v for v in ticks(low_x, high_x, wanted) if low_x <= v <= high_x]
    for value, label in zip(marks, tick_labels(marks), strict=True):
        parts.append(_text(x_scale(value), HEIGHT - MARGIN_BOTTOM + 16, label))
    for threshold in chart.thresholds:
        if y_ticks[0] <= threshold.value <= y_ticks[-1]:
            y = y_scale(threshold.value)
            right = width - MARGIN_RIGHT
            parts.append(f'<line class="threshold" x1="{MARGIN_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
            parts.append(_text(right - 4, y - 5, threshold.label, "end", ' class="threshold"'))
    parts += [_band(series, x_scale, y_scale) for series in chart.series if series.low and series.high]
    parts += [_line(series, x_scale, y_scale) for series in chart.series]
    parts += [_hover_points(chart, series, x_scale, y_scale) for series in chart.series]
    return "".join(parts)


def _runs(series: Series, *columns: Sequence[float | None]) -> list[list[int]]:
    """Stretches of indices at which every column has a value."""
    stretches: list[list[int]] = [[]]
    for index in range(len(series.x)):
        if all(column[index] is not None for column in columns):
            stretches[-1].append(index)
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _points(indices: Sequence[int], series: Series, column: Sequence[float | None], x_s: Scale, y_s: Scale) -> str:
    pairs = ((x_s(series.x[i]), column[i]) for i in indices)
    return " ".join(f"{x},{y_s(value)}" for x, value in pairs if value is not None)


def _band(series: Series, x_scale: Scale, y_scale: Scale) -> str:
    parts = []
    for stretch in _runs(series, series.low, series.high):
        if len(stretch) == 1:
            index = stretch[0]
            low, high = series.low[index], series.high[index]
            if low is not None and high is not None:
                x = x_scale(series.x[index])
                ends = f'x1="{x}" x2="{x}" y1="{y_scale(low)}" y2="{y_scale(high)}"'
                parts.append(f'<line class="whisker s{series.colour}" {ends}/>')
            continue
        upper = _points(stretch, series, series.high, x_scale, y_scale)
        lower = _points(stretch[::-1], series, series.low, x_scale, y_scale)
        parts.append(f'<polygon class="band f{series.colour}" points="{upper} {lower}"/>')
    return "".join(parts)


def _line(series: Series, x_scale: Scale, y_scale: Scale) -> str:
    dash = " dashed" if series.dashed else ""
    return "".join(
        f'<polyline class="line s{series.colour}{dash}" '
        f'points="{_points(stretch, series, series.y, x_scale, y_scale)}"/>'
        for stretch in _runs(series, series.y)
        if len(stretch) > 1
    )


def _hover_points(chart: LineChart, series: Series, x_scale: Scale, y_scale: Scale) -> str:
    """Dots with the exact value as hover text; thinned out on long runs, the last one always kept."""
    indices = [index for index, value in enumerate(series.y) if value is not None]
    stride = max(1, -(-len(indices) // MAX_HOVER_POINTS))
    kept = sorted({*indices[::stride], *indices[-1:]})
    radius = 2.4 if len(kept) <= 30 else 0.9
    parts = []
    for index in kept:
        value = series.y[index]
        if value is None:
            continue
        ends = ""
        if series.low and series.high and series.low[index] is not None and series.high[index] is not None:
            ends = f" [{compact(series.low[index])}, {compact(series.high[index])}]"
        hover = f"{series.label}: {compact(value)}{ends} at {chart.x_label} {compact(series.x[index])}"
        x, y = x_scale(series.x[index]), y_scale(value)
        parts.append(
            f'<g class="point"><title>{escape(hover + chr(10) + chart.source)}</title>'
            f'<circle class="hit" cx="{x}" cy="{y}" r="9"/>'
            f'<circle class="f{series.colour}" cx="{x}" cy="{y}" r="{radius}"/></g>'
        )
    return "".join(parts)


def _category_marks(names: Sequence[str], width: float, position: Callable[[int], float]) -> list[str]:
    """Category names below the axis, thinned out and cut so that they do not run into each other."""
    slot = (width - MARGIN_LEFT - MARGIN_RIGHT) / len(names)
    stride = max(1, -(-LABEL_WIDTH // int(slot + 1))) if slot < LABEL_WIDTH else 1
    room = max(5, int(slot * stride / 6.4))
    y = HEIGHT - MARGIN_BOTTOM + 16
    return [
        _text(position(i), y, name if len(name) <= room else f"{name[: room - 1]}…", extra=' class="name"')
        for i, name in enumerate(names)
        if i % stride == 0
    ]


def bar_limits(chart: BarChart) -> tuple[float, float]:
    """Lowest and highest bar end, 0 included."""
    if chart.stacked:
        totals = [sum(series.values[index] or 0.0 for series in chart.series) for index in range(len(chart.categories))]
    else:
        totals = [value for series in chart.series for value in series.values if value is not None]
    return min([0.0, *totals]), max([0.0, *totals]) or 1.0


def _bar_chart(chart: BarChart, width: float) -> str:
    if not chart.categories:
        return _text(width / 2, HEIGHT / 2, "no values yet", extra=' class="axis"')
    y_ticks = ticks(*bar_limits(chart))
    y_scale = Scale(y_ticks[0], y_ticks[-1], HEIGHT - MARGIN_BOTTOM, MARGIN_TOP)
    parts = _frame(chart, width, y_scale, y_ticks)
    slot = (width - MARGIN_LEFT - MARGIN_RIGHT) / len(chart.categories)
    lanes = 1 if chart.stacked else max(1, len(chart.series))
    bar = min(44.0, slot * 0.78 / lanes)
    for index, category in enumerate(chart.categories):
        base = 0.0
        for lane, series in enumerate(chart.series):
            value = series.values[index]
            if value is None:
                continue
            start, end = (base, base + value) if chart.stacked else (0.0, value)
            base = end
            offset = 0 if chart.stacked else (lane - (lanes - 1) / 2) * bar
            x = MARGIN_LEFT + (index + 0.5) * slot + offset - bar / 2
            top, bottom = sorted((y_scale(start), y_scale(end)))
            hover = escape(f"{category}, {series.label}: {compact(value)}{chr(10)}{chart.source}")
            parts.append(
                f'<rect class="f{series.colour}" x="{x:.2f}" y="{top:.2f}" width="{bar:.2f}" '
                f'height="{max(bottom - top, 0.01):.2f}"><title>{hover}</title></rect>'
            )
    parts += _category_marks(chart.categories, width, lambda i: MARGIN_LEFT + (i + 0.5) * slot)
    return "".join(parts)


def _heat_chart(chart: HeatChart, width: float) -> str:
    if not chart.columns:
        return _text(width / 2, HEIGHT / 2, "no values yet", extra=' class="axis"')
    cell_w = (width - MARGIN_LEFT - MARGIN_RIGHT) / len(chart.columns)
    cell_h = (HEIGHT - MARGIN_TOP - MARGIN_BOTTOM) / len(chart.rows)
    peak = max((v for column in chart.values for v in column if v is not None), default=0.0) or 1.0
    gap = 1.0 if cell_w > 4 else 0.0
    parts = []
    for i, column in enumerate(chart.values):
        for j, value in enumerate(column):
            x, y = MARGIN_LEFT + i * cell_w, HEIGHT - MARGIN_BOTTOM - (j + 1) * cell_h
            place = f'x="{x:.2f}" y="{y:.2f}" width="{cell_w - gap:.2f}" height="{cell_h - 1:.2f}"'
            shade = 0.0 if value is None else value / peak
            hover = escape(f"{chart.columns[i]}, {chart.rows[j]}: {compact(value)}{chr(10)}{chart.source}")
            parts.append(f'<rect class="cell" {place}/>')
            if shade > 0:
                parts.append(f'<rect class="f0" fill-opacity="{shade:.3f}" {place}/>')
            parts.append(f'<rect class="hit" {place}><title>{hover}</title></rect>')
    for j, name in enumerate(chart.rows):
        if j % max(1, len(chart.rows) // 5) == 0:
            parts.append(_text(MARGIN_LEFT - 7, HEIGHT - MARGIN_BOTTOM - (j + 0.5) * cell_h + 4, name, "end"))
    parts += _category_marks(chart.columns, width, lambda i: MARGIN_LEFT + (i + 0.5) * cell_w)
    centre = (MARGIN_LEFT + width - MARGIN_RIGHT) / 2
    parts.append(_text(centre, HEIGHT - 5, chart.x_label, extra=' class="axis"'))
    return "".join(parts)
