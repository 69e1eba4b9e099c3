"""Whole pages from directories of every kind."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stateplay_rl.config.report import ReportConfig
from stateplay_rl.errors import CorruptionError
from stateplay_rl.reporting.blocks import Chart, Gallery, ReportPage, SourcePage, Table
from stateplay_rl.reporting.build import build_report
from stateplay_rl.reporting.page import charts, render_html, table_csv, tables
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import LineLog
from tests.reporting.conftest import NASTY_PROMPT, Dirs
from tests.reporting.fixture_dirs import RunPlan, make_run, many_groups

CONFIG = ReportConfig()


def page_of(*paths: Path, config: ReportConfig = CONFIG) -> ReportPage:
    return build_report(paths, paths[0].parent / "report", config)


def galleries(page: SourcePage) -> dict[str, Gallery]:
    return {b.key: b for section in page.sections for b in section.blocks if b.kind == "gallery"}


def table(page: SourcePage, key: str) -> Table:
    return next(b for s in page.sections for b in s.blocks if b.kind == "table" and b.key == key)


class Auditor(HTMLParser):
    """Collects tags, their addresses, and duplicate ids."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "poster", "action"):
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")


def audited(html: str) -> Auditor:
    auditor = Auditor()
    auditor.feed(html)
    return auditor


def test_a_run_page_has_every_part(dirs: Dirs) -> None:
    (page,) = page_of(dirs.run).pages
    order = "outcome gallery classes picture groups signal policy loss cost batches"
    assert [section.key for section in page.sections] == order.split()
    keys = {chart.key for _, chart in charts(ReportPage("t", (page,)))}
    wanted = "reward changes classes shares spread r distance-reference distance-old velocity loss loss-sigma"
    assert keys >= set(wanted.split()) | {"picture-luma", "frozen", "time", "memory", "gradients"}
    assert [alarm.severity for alarm in page.alarms] == ["alarm", "warning"]
    assert len(table(page, "batches").rows) == 3


def test_the_gradient_cosine_is_shown_where_it_was_measured(dirs: Dirs, tmp_path: Path) -> None:
    (page,) = page_of(dirs.run).pages
    shown = {chart.key: chart for section, chart in charts(ReportPage("t", (page,)))}["signal-cosine"]
    assert shown.source == "metrics.jsonl: signal_cosine"
    assert [block.key for block in _signal_charts(page)][-1] == "signal-cosine"
    make_run(tmp_path / "run", RunPlan(sealed=False))
    metrics = tmp_path / "run" / layout.METRICS
    lines = [{**json.loads(line), "signal_cosine": None} for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (page,) = page_of(tmp_path / "run").pages
    assert "signal-cosine" not in [block.key for block in _signal_charts(page)]


def _signal_charts(page: SourcePage) -> list[Chart]:
    (section,) = (s for s in page.sections if s.key == "signal")
    return [chart for block in section.blocks if block.kind == "charts" for chart in block.charts]


def test_before_and_after_show_the_same_condition_and_seeds(dirs: Dirs) -> None:
    (page,) = page_of(dirs.run).pages
    cards = galleries(page)["before-after"].cards
    assert len(cards) == 5
    assert [video.role for video in cards[0].videos] == ["reference", "before", "before", "after", "after"]
    assert "rank 1 of 5" in cards[0].note
    assert all(video.score is not None for video in cards[0].videos[1:])
    assert cards[0].first_frame is not None
    assert cards[0].actions


def test_scores_and_failures_reach_the_group_browser(dirs: Dirs) -> None:
    (page,) = page_of(dirs.run).pages
    cards = galleries(page)["groups"].cards
    assert len(cards) == 6
    failed = [video for card in cards for video in card.videos if video.role == "candidate" and video.score is None]
    assert {video.reason for video in failed} == {"failed: unreadable: no bar found"}
    assert len(failed) == 4


def test_an_open_run_says_so_and_gives_a_reason_for_missing_scores(dirs: Dirs) -> None:
    (page,) = page_of(dirs.open_run).pages
    assert any("unfinished" in sentence for sentence in page.headline.sentences)
    video = galleries(page)["groups"].cards[0].videos[1]
    assert video.score is None
    assert video.reason is not None
    assert "still open" in video.reason


def test_an_open_segment_shows_the_scores_of_its_log(dirs: Dirs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(dirs.open_run, run)
    line = {"group_id": "b0g0", "scores": [1.0, None, 3.0, 4.0], "status": "failed", "reason": "partial: one"}
    details = {"candidates": [{"hp_error": 0.5}]}
    log = LineLog(run / layout.SEGMENTS_FOLDER / "000-a" / "verdicts.jsonl")
    log.append(line | {"details": details})
    (page,) = page_of(run).pages
    videos = galleries(page)["groups"].cards[0].videos
    assert [video.score for video in videos] == [None, 1.0, None, 3.0, 4.0]
    assert videos[2].reason == "failed: partial: one"
    assert videos[1].details == (("hp_error", "0.500"),)


def test_a_half_written_last_line_of_an_open_run_is_left_out(dirs: Dirs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(dirs.open_run, run)
    with (run / layout.METRICS).open("ab") as file:
        file.write(b'{"batch": 2, "rew')
    (page,) = page_of(run).pages
    assert len(table(page, "batches").rows) == 2


def test_a_damaged_line_is_named(dirs: Dirs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(dirs.run, run)
    (run / layout.HELDOUT).write_text("{}\nnot json\n", encoding="utf-8")
    with pytest.raises(CorruptionError, match=r"heldout\.jsonl: line 2"):
        page_of(run)


def test_a_heldout_folder_outside_of_the_run_is_refused(dirs: Dirs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(dirs.run, run)
    text = (run / layout.HELDOUT).read_text(encoding="utf-8")
    (run / layout.HELDOUT).write_text(text.replace("heldout/0-live", "../elsewhere"), encoding="utf-8")
    with pytest.raises(ValueError, match="outside of the run"):
        page_of(run)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_run_without_batches_or_evaluations(tmp_path: Path, sealed: bool) -> None:
    make_run(tmp_path / "run", RunPlan(batches=0, evaluations=(), sealed=sealed))
    page = page_of(tmp_path / "run")
    assert page.pages[0].headline.verdict == "No held-out evaluation yet"
    assert "NaN" not in render_html(page)


def test_two_runs_are_compared_and_the_control_is_recognised(dirs: Dirs) -> None:
    page = page_of(dirs.run, dirs.control)
    assert page.comparison is not None
    assert page.comparison_headline is not None
    assert page.comparison_headline.verdict == "Held-out reward rose, above the control"
    assert page.pages[1].headline.tone == "neutral"
    gains = next(b for b in page.comparison.blocks if b.kind == "table" and b.key == "gains")
    assert [row[:2] for row in gains.rows] == [("run", "run"), ("control", "control")]
    differences = next(b for b in page.comparison.blocks if b.kind == "table" and b.key == "config")
    assert differences.rows == (("control", "control", "none", "shuffled_rewards"),)
    assert [alarm.name for alarm in page.comparison_alarms] == ["heldout_drop (run)", "velocity_ratio (run)"]


def test_conditions_page_counts(dirs: Dirs) -> None:
    (page,) = page_of(dirs.conditions).pages
    assert page.headline.sentences[0] == "6 conditions eligible, 1 row rejected."
    assert table(page, "rejects").rows == (("video_short", 1),)
    assert table(page, "warnings").rows == (("action_out_of_window", 1),)
    frames = next(b for s in page.sections for b in s.blocks if b.kind == "frames")
    assert len(frames.frames) == 6


def test_scores_page_finds_its_groups_and_its_details(dirs: Dirs) -> None:
    (page,) = page_of(dirs.scores).pages
    assert table(page, "missing").rows == (("failed: unreadable: no bar found", 4),)
    cards = galleries(page)["groups"].cards
    assert len(cards) == 5
    assert ("hp_error", "0.250") in cards[0].videos[2].details
    assert ("frozen_display", "yes") in cards[0].videos[3].details


def test_scores_page_without_its_groups_says_how_to_see_them(dirs: Dirs, tmp_path: Path) -> None:
    shutil.copytree(dirs.scores, tmp_path / "far" / "scores")
    (page,) = page_of(tmp_path / "far" / "scores").pages
    texts = [b.text for s in page.sections for b in s.blocks if b.kind == "prose"]
    assert any("not found" in text for text in texts)
    assert table(page, "classes").rows


def test_groups_page_takes_scores_that_were_given_too(dirs: Dirs) -> None:
    groups, _ = page_of(dirs.groups, dirs.scores).pages
    assert galleries(groups)["groups"].cards[0].videos[1].score == 0.0
    (alone,) = page_of(dirs.groups).pages
    assert galleries(alone)["groups"].cards[0].videos[1].reason == "not judged"


def test_audit_page_shows_verdict_and_coverage(dirs: Dirs) -> None:
    (page,) = page_of(dirs.audit).pages
    assert (page.headline.verdict, page.headline.tone) == ("Passed", "good")
    assert table(page, "coverage").rows[1] == ("latent_state", 280000, None)


def test_the_page_is_whole_escaped_and_needs_no_network(dirs: Dirs) -> None:
    html = render_html(page_of(dirs.run, dirs.control, dirs.conditions, dirs.scores, dirs.groups, dirs.audit))
    assert "<script>alert" not in html
    assert "<b>keep away" not in html
    assert "<b>bad</b>" not in html
    assert "NaN" not in html
    auditor = audited(html)
    scripts = html.count("<script")
    assert auditor.tags.count("script") == scripts
    assert all(address.startswith(("#", "data:image/")) for address in auditor.addresses)
    assert not re.search(r"""(?:url\(|@import|https?://(?!www\.w3\.org/2000/svg))""", html)
    assert len(auditor.ids) == len(set(auditor.ids))
    assert {"iframe", "link", "object", "embed"}.isdisjoint(auditor.tags)


def test_prompts_survive_the_round_trip_through_the_page(dirs: Dirs) -> None:
    html = render_html(page_of(dirs.groups))
    data = re.search(r'<script type="application/json" id="groups-groups-json">(.*?)</script>', html, re.S)
    assert data is not None
    value = json.loads(data.group(1))
    assert {value["words"][card["prompt"]] for card in value["cards"]} == {NASTY_PROMPT}
    assert len(value["cards"]) == 5


def test_the_budget_bounds_embedded_media(dirs: Dirs) -> None:
    page = page_of(dirs.groups, config=ReportConfig(embedded_megabytes=0.001))
    assert page.media == {}
    card = galleries(page.pages[0])["groups"].cards[0]
    assert card.videos[1].href == "../groups/g000/candidate_0.mp4"


def test_gallery_and_browser_share_the_limit_of_embedded_groups(dirs: Dirs) -> None:
    page = page_of(dirs.run, config=ReportConfig(embedded_groups=4, gallery_conditions=3)).pages[0]
    embedded = [
        card.title
        for gallery in galleries(page).values()
        for card in gallery.cards
        if any(video.media for video in card.videos)
    ]
    assert len(embedded) == 4


def test_every_table_and_figure_becomes_csv_without_nan(dirs: Dirs) -> None:
    written = dict(tables(page_of(dirs.run, dirs.control)))
    assert {"all-gains", "run-batches", "figure-run-reward", "figure-all-heldout"} <= set(written)
    for item in written.values():
        text = table_csv(item)
        assert "nan" not in text.lower()
        assert len(text.splitlines()) == len(item.rows) + 1


def test_equal_inputs_give_equal_bytes(dirs: Dirs) -> None:
    assert render_html(page_of(dirs.run, dirs.scores)) == render_html(page_of(dirs.run, dirs.scores))


def test_two_thousand_groups_are_listed_and_few_are_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_run(run, RunPlan(batches=1, evaluations=(), sealed=False, groups_per_batch=0))
    many_groups(run / layout.SEGMENTS_FOLDER / "000-a" / layout.GROUPS_FOLDER, 2000)
    page = page_of(run)
    cards = galleries(page.pages[0])["groups"].cards
    assert len(cards) == 2000
    assert sum(any(video.media for video in card.videos) for card in cards) == 24
    assert len(render_html(page)) < 8_000_000
