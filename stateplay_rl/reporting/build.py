"""From directories to the whole page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stateplay_rl.config.report import ReportConfig
from stateplay_rl.reporting.blocks import ReportPage, SourcePage
from stateplay_rl.reporting.comparison import (
    comparison_alarms,
    comparison_headline,
    comparison_section,
    find_control,
)
from stateplay_rl.reporting.conditions_page import conditions_page
from stateplay_rl.reporting.context import ReportContext
from stateplay_rl.reporting.json_page import json_page
from stateplay_rl.reporting.media import MediaTable
from stateplay_rl.reporting.probe_page import probe_page
from stateplay_rl.reporting.run_data import RunData
from stateplay_rl.reporting.run_files import read_run
from stateplay_rl.reporting.run_page import run_page
from stateplay_rl.reporting.score_page import groups_page, scores_page
from stateplay_rl.reporting.sources import Source, open_sources
from stateplay_rl.reporting.student_page import student_page

PAGE_RESERVE_BYTES = 3 << 20
"""Kept free for text, figures and the groups' index when the media budget is set."""
PAGES = {
    "conditions": conditions_page,
    "groups": groups_page,
    "scores": scores_page,
    "reward_model": student_page,
    "probe": probe_page,
}
"""Pages of their own by kind; any other directory is shown part by part."""
WITH_VIDEOS = ("run", "groups", "scores")


def build_report(paths: Sequence[Path], out: Path, config: ReportConfig) -> ReportPage:
    """Read the directories and describe the page.

    Args:
        paths: sprl directories; runs may be unfinished.
        out: the report's directory, for relative links.
        config: what goes into the page.

    Raises:
        UsageError, InputError, UnsealedError, CorruptionError: as the readers of each kind.
    """
    sources = open_sources(paths)
    media = MediaTable(out, max(0, int(config.embedded_megabytes * 1_000_000) - PAGE_RESERVE_BYTES))
    showing = sum(1 for source in sources if source.schema in WITH_VIDEOS)
    context = ReportContext(config, out, media, sources, config.embedded_groups // max(showing, 1))
    runs = [(source, read_run(source)) for source in sources if source.schema == "run"]
    control = find_control(runs)
    loaded = {source.key: run for source, run in runs}
    pages = tuple(_page(source, loaded.get(source.key), control, context) for source in sources)
    title = config.title or ", ".join(source.name for source in sources)
    if len(runs) < 2:
        return ReportPage(title, pages, media=media.embedded)
    return ReportPage(
        title,
        pages,
        comparison_section(runs),
        comparison_headline(runs),
        comparison_alarms(runs),
        media.embedded,
    )


def _page(source: Source, run: RunData | None, control: RunData | None, context: ReportContext) -> SourcePage:
    if run is not None:
        return run_page(source, run, None if run.is_control else control, context)
    return PAGES.get(source.schema, json_page)(source, context)
