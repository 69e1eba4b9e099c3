"""Inline SVG: well formed, escaped, gaps kept."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from stateplay_rl.reporting.blocks import BarChart, BarSeries, Chart, HeatChart, LineChart, Series, Threshold
from stateplay_rl.reporting.png import render_png
from stateplay_rl.reporting.svg import LABEL_WIDTH, MAX_HOVER_POINTS, Scale, render_svg

NASTY = "<b>&\"'"


def line_chart(y: tuple[float | None, ...], **changes: object) -> LineChart:
    x = tuple(float(index) for index in range(len(y)))
    low = tuple(None if v is None else v - 1 for v in y)
    high = tuple(None if v is None else v + 1 for v in y)
    fields: dict[str, object] = {"thresholds": (Threshold(1.5, "limit"),)} | changes
    return LineChart("k", NASTY, "x", "y", (Series(NASTY, x, y, 0, low, high),), NASTY, **fields)  # type: ignore[arg-type]


CHARTS: list[Chart] = [
    line_chart((1.0, None, 2.0, 3.0)),
    line_chart((5.0,)),
    line_chart((None, None)),
    line_chart(()),
    line_chart((0.0, 0.0)),
    BarChart("k", NASTY, "x", "y", ("a", NASTY), (BarSeries("s", (1.0, None), 1),), NASTY, stacked=True),
    BarChart("k", NASTY, "x", "y", (), (), NASTY),
    BarChart("k", "t", "x", "y", ("a",), (BarSeries("s", (-2.0,), 1), BarSeries("u", (0.0,), 2)), "s"),
    HeatChart("k", NASTY, "x", "y", ("0", "1"), ("a", "b"), ((0.5, None), (0.0, 1.0)), NASTY),
    HeatChart("k", "t", "x", "y", (), (), (), "s"),
]


@pytest.mark.parametrize("chart", CHARTS)
@pytest.mark.parametrize("columns", [2, 3])
def test_every_chart_is_well_formed_and_holds_no_nan(chart: Chart, columns: int) -> None:
    text = render_svg(chart, columns)
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert "nan" not in text.lower()
    assert "<b>" not in text
    assert "style=" not in text  # colours come from the page's classes, for dark mode


def test_a_missing_value_breaks_the_line() -> None:
    text = render_svg(line_chart((1.0, 2.0, None, 3.0, 4.0)))
    assert text.count("<polyline") == 2
    assert text.count("<polygon") == 2


def test_a_lone_point_gets_a_whisker() -> None:
    assert 'class="whisker' in render_svg(line_chart((5.0,)))


def test_hover_points_are_thinned_and_keep_the_last() -> None:
    text = render_svg(line_chart(tuple(float(v) for v in range(5000))))
    assert text.count('class="point"') <= MAX_HOVER_POINTS + 1
    assert "4,999 [" in text


def test_thresholds_far_from_the_data_are_not_drawn() -> None:
    assert "limit" in render_svg(line_chart((1.0, 2.0)))
    assert "limit" not in render_svg(line_chart((1.0, 2.0), thresholds=(Threshold(500.0, "limit"),)))


def test_category_labels_do_not_run_into_each_other() -> None:
    names = tuple(str(index) for index in range(500))
    chart = BarChart("k", "t", "x", "y", names, (BarSeries("s", tuple([1.0] * 500), 0),), "s")
    root = ElementTree.fromstring(render_svg(chart))
    places = [
        float(node.attrib["x"]) for node in root.iter() if node.tag.endswith("text") and node.attrib["y"] == "240"
    ]
    assert len(places) > 3
    assert min(b - a for a, b in pairwise(places)) >= LABEL_WIDTH * 0.8


def test_scale_maps_ends_and_survives_one_value() -> None:
    assert Scale(0, 10, 100, 200)(5) == 150
    assert Scale(3, 3, 100, 200)(3) == 150


@pytest.mark.parametrize("chart", [CHARTS[0], CHARTS[3], CHARTS[5], CHARTS[6], CHARTS[8], CHARTS[9]])
def test_png_is_a_picture_and_repeats(chart: Chart) -> None:
    data = render_png(chart)
    assert data.startswith(b"\x89PNG")
    assert data == render_png(chart)
