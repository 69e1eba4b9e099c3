"""From directories to the whole page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stateplay_rl.config.report import ReportConfig
from stateplay_rl.errors import UsageError
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
from stateplay_rl.reporting.label_files import read_labelled_sets
from stateplay_rl.reporting.label_set import LabelSet, choose_label_set, is_of_run
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
    labelled = read_labelled_sets(config.labels, config.label_key)
    context = ReportContext(config, out, media, sources, config.embedded_groups // max(showing, 1), labelled)
    runs = [(source, read_run(source)) for source in sources if source.schema == "run"]
    for of in labelled:
        if not any(is_of_run(of.key, source, run) for source, run in runs):
            raise UsageError("the labels are of none of the given runs", "give the run that the videos were taken from")
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


def label_set_of(paths: Sequence[Path], config: ReportConfig) -> LabelSet | None:
    """The blind set that was asked for, of the one run among the directories; None when none was.

    Raises:
        UsageError: no run, several, or one without enough held-out videos.
    """
    if not config.label_set:
        return None
    runs = [source for source in open_sources(paths) if source.schema == "run"]
    if len(runs) != 1:
        raise UsageError(
            f"--label-set takes videos of one run; {len(runs)} were given", "sprl report RUN --label-set 100"
        )
    return choose_label_set(runs[0], read_run(runs[0]), config.label_set, config.label_seed)


def _page(source: Source, run: RunData | None, control: RunData | None, context: ReportContext) -> SourcePage:
    if run is not None:
        return run_page(source, run, None if run.is_control else control, context)
    return PAGES.get(source.schema, json_page)(source, context)
