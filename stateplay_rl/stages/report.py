"""`sprl report`: read directories, write one page with its figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.config.report import ReportConfig
from stateplay_rl.reporting.build import build_report, label_set_of
from stateplay_rl.reporting.label_page import label_files
from stateplay_rl.reporting.page import charts, render_html, table_csv, tables
from stateplay_rl.reporting.png import render_png
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import OutputDirectory


@dataclass(frozen=True)
class ReportOptions:
    """Where to write, and what may be replaced."""

    out: Path
    resume: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class ReportSummary:
    """What was written.

    Attributes:
        html: the page.
        verdicts: name and verdict of each directory.
        page_bytes: size of the page.
        embedded_videos, figures, tables: counts.
        label_page: the blind page for people, when one was asked for.
    """

    html: Path
    verdicts: tuple[tuple[str, str], ...]
    page_bytes: int
    embedded_videos: int
    figures: int
    tables: int
    label_page: Path | None = None


def run(config: ReportConfig, inputs: Sequence[Path], options: ReportOptions) -> ReportSummary:
    """Write the report on `inputs`.

    Args:
        config: what goes into the page.
        inputs: sprl directories; training runs may be unfinished.
        options: output directory and what may be replaced.

    Returns:
        A summary with the page's path.

    Raises:
        InputError: a directory is missing, foreign, unfinished or damaged.
        OutputError: the output is in use, not empty, or overlaps with an input.
    """
    # Everything is read before anything is written: a bad input leaves an existing report as it was.
    page = build_report(inputs, options.out, config)
    html = render_html(page).encode("utf-8")
    chosen = label_set_of(inputs, config)
    named = {f"source_{index}": path for index, path in enumerate(inputs)}
    with OutputDirectory.open(
        options.out,
        schema="report",
        version=layout.SCHEMAS["report"],
        command="report",
        config=config,
        inputs=named,
        resume=options.resume,
        overwrite=options.overwrite,
    ) as out:
        figures = list(charts(page)) if config.png else []
        written = list(tables(page))
        summary = ReportSummary(
            out.path / layout.REPORT,
            tuple((source.name, source.headline.verdict) for source in page.pages),
            len(html),
            len(page.media),
            len(figures),
            len(written),
            out.path / layout.LABELS_FOLDER / layout.LABEL_PAGE if chosen is not None else None,
        )
        if out.already_sealed:
            return summary
        out.write_bytes(layout.REPORT, html)
        for stem, table in written:
            out.write_text(f"{layout.TABLES_FOLDER}/{stem}.csv", table_csv(table))
        for stem, chart in figures:
            out.write_bytes(f"{stem}.png", render_png(chart))
        for name, data in label_files(chosen) if chosen is not None else ():
            out.write_bytes(name, data)
        out.seal(extra={"verdicts": dict(summary.verdicts)})
    return summary
