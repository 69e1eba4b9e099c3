"""The blocks of a report as one HTML file. Jinja escapes all values; only our SVG, CSS and script are raw."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from stateplay_rl.reporting.blocks import (
    BarChart,
    Card,
    Chart,
    Column,
    Gallery,
    HeatChart,
    LineChart,
    Number,
    ReportPage,
    Section,
    Table,
)
from stateplay_rl.reporting.numbers import MISSING, compact
from stateplay_rl.reporting.svg import render_svg

_TEMPLATES = files("stateplay_rl.reporting") / "templates"


def render_html(page: ReportPage) -> str:
    """The page as HTML text: equal pages give equal text."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (_TEMPLATES / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = lambda chart, columns: Markup(render_svg(chart, columns))
    environment.filters["cell"] = format_cell
    environment.filters["gallery_json"] = lambda gallery: embedded_json(gallery_data(gallery))
    environment.filters["embedded_json"] = embedded_json
    environment.filters["lineage_json"] = lambda line: embedded_json(
        {**line, "steps": [asdict(step) for step in line["steps"]]}
    )
    # CSS and script are files of this package: no value of a user's directory is in them.
    style = Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8"))
    scripts = {
        name: Markup((_TEMPLATES / f"{name}.js").read_text(encoding="utf-8")) for name in ("theme", "drawer", "player")
    }
    template = environment.get_template("report.html.j2")
    return template.render(page=page, style=style, **scripts)


def embedded_json(value: object) -> Markup:
    """JSON that can stand inside a ``<script>`` element: no character that HTML could read as a tag.

    Raises:
        ValueError: a number is not finite (JSON knows no NaN).
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


class _Words:
    """Strings that come again and again, each stored once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    def flat(self, pairs: Iterable[tuple[str, str]]) -> list[int]:
        """``name, value, name, value, ...`` as positions."""
        return [self(text) for pair in pairs for text in pair]

    def list(self) -> list[str]:
        """All strings by position."""
        return list(self._places)


def gallery_data(gallery: Gallery) -> dict[str, Any]:
    """What the page's script draws: 10,000 groups must fit, so strings are shared and empty fields left out."""
    words = _Words()
    cards = [_card_data(card, words) for card in gallery.cards]
    return {"cards": cards, "words": words.list(), "page_size": gallery.page_size}


def _card_data(card: Card, words: _Words) -> dict[str, Any]:
    base = next((video.href.rpartition("/")[0] + "/" for video in card.videos if video.href), "")
    videos = []
    for video in card.videos:
        entry = {key: value for key, value in vars(video).items() if value or key == "score"}
        if video.href and video.href.startswith(base):
            entry["href"] = video.href[len(base) :]
            entry["based"] = 1
        if video.details:
            entry["details"] = words.flat(video.details)
        videos.append(entry)
    entry = {key: value for key, value in vars(card).items() if value or key == "batch"}
    return {
        **entry,
        "videos": videos,
        "base": base,
        "prompt": words(card.prompt),
        "facts": words.flat(card.facts),
        "alarms": list(card.alarms),
        "files": [part for name, sha256 in card.files for part in (words(name), sha256)],
    }


def format_cell(cell: str | Number, column: Column) -> str:
    """One table cell as text."""
    if cell is None:
        return MISSING
    if isinstance(cell, str):
        return cell
    return compact(cell, digits=column.digits, signed=column.signed)


def sections(page: ReportPage) -> Iterator[tuple[str, Section]]:
    """Every section with the prefix of its ids and file names."""
    if page.comparison is not None:
        yield "all", page.comparison
    for source in page.pages:
        for section in source.sections:
            yield source.key, section


def charts(page: ReportPage) -> Iterator[tuple[str, Chart]]:
    """Every figure with its file stem, unique within the page."""
    for prefix, section in sections(page):
        for block in section.blocks:
            if block.kind == "charts":
                for chart in block.charts:
                    yield f"{prefix}-{chart.key}", chart


def tables(page: ReportPage) -> Iterator[tuple[str, Table]]:
    """Every table, then the numbers behind every figure, with their file stems."""
    for prefix, section in sections(page):
        for block in section.blocks:
            if block.kind == "table":
                yield f"{prefix}-{block.key}", block
    for stem, chart in charts(page):
        yield f"figure-{stem}", chart_table(stem, chart)


def chart_table(stem: str, chart: Chart) -> Table:
    """The numbers that a figure draws, one row per point."""
    rows: list[tuple[str | Number, ...]] = []
    columns = (Column("series"), Column(chart.x_label), Column("value", True), Column("low"), Column("high"))
    if isinstance(chart, LineChart):
        for series in chart.series:
            for i, x in enumerate(series.x):
                low = series.low[i] if series.low else None
                high = series.high[i] if series.high else None
                rows.append((series.label, x, series.y[i], low, high))
    elif isinstance(chart, BarChart):
        rows = [
            (s.label, name, s.values[i], None, None) for s in chart.series for i, name in enumerate(chart.categories)
        ]
    elif isinstance(chart, HeatChart):
        rows = [
            (row, name, chart.values[i][j], None, None)
            for i, name in enumerate(chart.columns)
            for j, row in enumerate(chart.rows)
        ]
    return Table(stem, chart.title, columns, tuple(rows), chart.source)


def table_csv(table: Table) -> str:
    """All rows as CSV with full precision; a missing value is an empty cell."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([column.label for column in table.columns])
    for row in table.rows:
        writer.writerow(["" if cell is None else cell for cell in row])
    return target.getvalue()


def unique_keys(names: Mapping[int, str]) -> dict[int, str]:
    """A key per position, made of the name's letters and digits and told apart by a number."""
    keys: dict[int, str] = {}
    for position, name in names.items():
        base = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower()).strip("-") or "source"
        key, number = base, 2
        while key in keys.values() or key == "all":
            key, number = f"{base}-{number}", number + 1
        keys[position] = key
    return keys
