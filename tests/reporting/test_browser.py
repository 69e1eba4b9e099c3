"""The report and the labelling page in a real browser: every control is clicked, and what it shows is looked at.

Without a Chromium the tests are skipped; `apt-get install chromium` (or CHROMIUM=/path/to/it) switches them on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.browser import WIDTHS, Browser, find_chromium
from stateplay_rl.cli.main import main
from stateplay_rl.stores import layout
from tests.reporting.conftest import Dirs
from tests.reporting.fixture_dirs import FRAMES, RunPlan, make_run, many_groups

PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium, or set CHROMIUM"),
]
LABELLED = 4
GALLERY = "#run-groups-cards"
CARD = f"{GALLERY} .vcard:first-child"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    downloads = tmp_path_factory.mktemp("downloads")
    with Browser(PROGRAM, downloads) as found:
        found.look(1200)
        yield found


@pytest.fixture(scope="module")
def report(dirs: Dirs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with alarms and before-and-after videos, and a blind set of it."""
    out = tmp_path_factory.mktemp("browser") / "report"
    arguments = ["report", str(dirs.run), "--label-set", str(LABELLED), "--out", str(out), "--set", "png=false", "-q"]
    assert main(arguments) == 0
    return out


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Browser]:
    """The report, freshly opened; nothing may go wrong in it, and nothing be fetched from elsewhere."""
    browser.problems.clear()
    browser.requests.clear()
    browser.look(1200)
    browser.open(report / layout.REPORT)
    browser.value(f"document.querySelector({GALLERY!r}).scrollIntoView({{behavior: 'instant'}})")
    browser.until(f"document.querySelector({CARD!r}) !== null")
    yield browser
    assert browser.problems == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "blob", "data"}


def times(browser: Browser, selector: str) -> list[float]:
    """Where each video of a card stands, seconds."""
    found = browser.value(f"[...document.querySelectorAll('{selector} video')].map((v) => v.currentTime)")
    return [float(value) for value in found]


def needs_h264(browser: Browser) -> None:
    if not browser.value("document.createElement('video').canPlayType('video/mp4; codecs=\"avc1.42E01E\"')"):
        pytest.skip("this Chromium plays no H.264")


def shown(browser: Browser) -> int:
    """Cards that the group browser's filters leave."""
    text = browser.value(f"document.querySelector('{GALLERY} .shown').textContent")
    return int(str(text).rpartition(" ")[2])


def test_the_theme_follows_the_system_until_the_button_is_pressed(page: Browser) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.value(background)
    page.look(1200, dark=True)
    dark = page.value(background)
    assert light != dark
    page.click("#theme")
    assert page.value(background) == light
    page.click("#theme")
    assert page.value(background) == dark
    page.click("#theme")
    page.value("location.reload()")
    time.sleep(0.3)
    page.until("document.readyState === 'complete' && document.querySelector('#theme').textContent === 'Dark'")
    assert page.value(background) == light, "the choice is kept"
    page.click("#theme")


def test_filters_of_the_group_browser(page: Browser) -> None:
    every = shown(page)
    assert every == 6
    page.choose(f"{GALLERY} [data-filter=class]", "normal")
    one_class = shown(page)
    assert 0 < one_class < every
    titles = page.value(f"[...document.querySelectorAll('{GALLERY} .vcard .meta')].map((n) => n.textContent)")
    assert all(str(title).startswith("normal") for title in titles)
    page.choose(f"{GALLERY} [data-filter=class]", "all")
    page.choose(f"{GALLERY} [data-filter=score]", "none")
    assert shown(page) == 1
    page.choose(f"{GALLERY} [data-filter=score]", "all")
    page.type(f"{GALLERY} [data-filter=from]", "2")
    assert shown(page) == 2
    page.type(f"{GALLERY} [data-filter=to]", "1")
    assert shown(page) == 0
    assert page.value(f"document.querySelector('{GALLERY} .cards').textContent") == "No group matches these filters."


def test_filter_by_alarm_and_order_and_pages(page: Browser) -> None:
    page.choose(f"{GALLERY} [data-filter=alarm]", "heldout_drop")
    assert shown(page) == 2
    page.choose(f"{GALLERY} [data-filter=alarm]", "all")
    page.choose(f"{GALLERY} [data-filter=order]", "best")
    page.click(f"{GALLERY} .pager button:nth-child(2)")
    assert str(page.value(f"document.querySelector('{GALLERY} .shown').textContent")).startswith("5 to 6")
    page.click(f"{GALLERY} .pager button:nth-child(1)")
    best = page.value(
        f"[...document.querySelectorAll('{GALLERY} .vcard')].map((c) => "
        "Math.max(-1, ...[...c.querySelectorAll('.score')].map((n) => Number(n.textContent))))"
    )
    assert best == sorted(best, reverse=True)


def test_videos_step_play_and_change_speed_together(page: Browser) -> None:
    needs_h264(page)
    ready = f"[...document.querySelectorAll('{CARD} video')].every((v) => v.readyState > 1)"
    page.until(f"document.querySelectorAll('{CARD} video').length === 5 && {ready}")
    page.click(f"{CARD} .controls button:nth-of-type(3)")
    page.click(f"{CARD} .controls button:nth-of-type(3)")
    assert page.value(f"document.querySelector('{CARD} .count').textContent") == f"frame 3 / {FRAMES}"
    assert set(times(page, CARD)) == {2.5 / 20}
    page.click(f"{CARD} .controls button:nth-of-type(2)")
    assert set(times(page, CARD)) == {1.5 / 20}
    page.choose(f"{CARD} select[aria-label=speed]", "0.25")
    page.click(f"{CARD} .controls button:nth-of-type(1)")
    playing = f"[...document.querySelectorAll('{CARD} video')].every((v) => !v.paused && v.playbackRate === 0.25)"
    page.until(playing)
    page.until(f"document.querySelector('{CARD} video').currentTime > 0.15")
    assert max(times(page, CARD)) - min(times(page, CARD)) < 2.5 / 20
    page.click(f"{CARD} .controls button:nth-of-type(1)")
    page.until(f"[...document.querySelectorAll('{CARD} video')].every((v) => v.paused)")


def test_from_a_score_to_the_hash_of_its_file(page: Browser, dirs: Dirs) -> None:
    page.click(f"{CARD} button.score")
    page.until("!document.getElementById('drawer').hidden")
    drawer = str(page.value("document.getElementById('drawer').textContent"))
    group = str(page.value(f"document.querySelector('{CARD} h4').textContent"))
    video = dirs.run / layout.SEGMENTS_FOLDER / "000-a" / layout.GROUPS_FOLDER / group / "candidate_0.mp4"
    assert hashlib.sha256(video.read_bytes()).hexdigest() in drawer
    manifest = hashlib.sha256((dirs.run / layout.MANIFEST).read_bytes()).hexdigest()
    assert manifest in drawer
    page.key("Escape")
    assert page.value("document.getElementById('drawer').hidden") is True


def test_from_a_figure_a_table_and_a_large_number_to_its_file(page: Browser, dirs: Dirs) -> None:
    log = hashlib.sha256((dirs.run / layout.METRICS).read_bytes()).hexdigest()
    for selector in ("#run-signal figcaption .src", "#run-batches td.num", "#run-outcome .stat[data-source^=metrics]"):
        page.click(selector)
        page.until("!document.getElementById('drawer').hidden")
        drawer = str(page.value("document.getElementById('drawer').textContent"))
        assert layout.METRICS in drawer, selector
        assert log in drawer, selector
        page.click("#drawer button")
        assert page.value("document.getElementById('drawer').hidden") is True


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_sticks_out_at_any_width(page: Browser, width: int) -> None:
    page.look(width)
    assert page.overflow() == []
    assert page.value("document.documentElement.scrollWidth <= innerWidth")


def label_file(browser: Browser, name: str) -> dict[str, Any]:
    file: Path = browser.downloads / name
    end = time.monotonic() + 30
    while not file.is_file() and time.monotonic() < end:
        time.sleep(0.05)
    value: dict[str, Any] = json.loads(file.read_text())
    return value


def test_labels_from_the_first_click_to_the_report(browser: Browser, report: Path, dirs: Dirs, tmp_path: Path) -> None:
    browser.problems.clear()
    browser.look(1200)
    browser.open(report / "labels" / "label.html")
    browser.type("#labeller", "Ada L.")
    browser.click("[data-score='75']")
    assert browser.value("document.getElementById('value').textContent") == "75"
    browser.click("#following")
    browser.key("5")
    browser.click("#following")
    browser.click("#unsure")
    assert browser.value("document.getElementById('progress').textContent") == f"3 of {LABELLED} scored"
    browser.click("#play")
    before = times(browser, "#videos")[0]
    browser.click("#next-frame")
    assert times(browser, "#videos")[0] != before
    browser.value("location.reload()")
    time.sleep(0.3)
    browser.until("document.readyState === 'complete' && document.getElementById('labeller').value === 'Ada L.'")
    browser.click("#open")
    assert browser.value("document.getElementById('name').textContent") == f"Video 004 of {LABELLED}"
    browser.click("[data-score='0']")
    browser.click("#save")
    saved = label_file(browser, "labels-Ada-L-.json")
    assert saved["labels"] == {
        "001": {"score": 75},
        "002": {"score": 55},
        "003": {"score": None},
        "004": {"score": 0},
    }
    assert browser.problems == []
    out = tmp_path / "report"
    labels = str(browser.downloads / "labels-Ada-L-.json")
    key = str(report / "labels" / "key.json")
    arguments = ["report", str(dirs.run), "--labels", labels, "--label-key", key, "--out", str(out)]
    assert main([*arguments, "--set", "png=false", "-q"]) == 0
    browser.open(out / layout.REPORT)
    assert browser.value("document.querySelector('#run-labels .stat .value').textContent") == f"3 of {LABELLED}"
    assert "Ada L. and judge" in str(browser.value("document.querySelector('#run-labels').textContent"))


def test_ten_thousand_groups_are_browsed_and_few_videos_are_loaded(browser: Browser, tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_run(run, RunPlan(batches=1, evaluations=(), sealed=False, groups_per_batch=0))
    many_groups(run / layout.SEGMENTS_FOLDER / "000-a" / layout.GROUPS_FOLDER, 10_000)
    assert main(["report", str(run), "--out", str(tmp_path / "report"), "--set", "png=false", "-q"]) == 0
    page = tmp_path / "report" / layout.REPORT
    assert page.stat().st_size < 40_000_000
    browser.requests.clear()
    browser.problems.clear()
    browser.open(page)
    browser.until(f"document.querySelector({CARD!r}) !== null")
    assert shown(browser) == 10_000
    assert browser.value("document.querySelectorAll('video').length") <= 24
    browser.choose(f"{GALLERY} [data-filter=where]", "embedded")
    assert shown(browser) == 24
    assert browser.problems == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "blob", "data"}
