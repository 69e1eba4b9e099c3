"""Text from data and from judges is escaped wherever it becomes HTML."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateplay_rl.checks.lines import CheckLine
from stateplay_rl.cli.main import main
from stateplay_rl.config.verify import InstallConfig
from stateplay_rl.stages.verify import VerifySummary, seal_record
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import OutputDirectory
from tests.fuzz.damage import fuzzed

NASTY = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><svg onload=alert(1)>",
    "<!--<script>",
    "javascript:alert(1)",
    "{{ 7*7 }}{% raw %}",
    "\u2028</title><b>",
]  # fmt: skip


def verified(folder: Path, text: str) -> Path:
    with OutputDirectory.open(
        folder, schema="verify", version=layout.SCHEMAS["verify"], command="verify dir", config=InstallConfig(),
        inputs={}, resume=False, overwrite=True,
    ) as directory:  # fmt: skip
        lines = (CheckLine(text, "failed", text, 0.0, text),)
        seal_record(directory, VerifySummary("dir", folder, lines, (text,)), None)
    return folder


class Tags(HTMLParser):
    """Tags and event handlers of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.found += [name for name, _ in attrs if name.startswith("on")]


def tags_of(html: str) -> list[str]:
    parser = Tags()
    parser.feed(html)
    return parser.found


def page(tmp_path: Path, text: str) -> str:
    folder = verified(tmp_path / "verify-x", text)
    assert main(["report", str(folder), "--out", str(tmp_path / "report"), "--overwrite"]) == 0
    return (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_a_page_has_the_same_tags_whatever_the_text(tmp_path: Path) -> None:
    plain = tags_of(page(tmp_path, "plain text"))
    for text in NASTY:
        html = page(tmp_path, text)
        assert tags_of(html) == plain, text
        assert "49" not in re.findall(r"(\d+)\{% raw", html)


@pytest.mark.parametrize("text", NASTY)
def test_the_nasty_text_is_still_told(tmp_path: Path, text: str) -> None:
    folder = verified(tmp_path / "verify-x", text)
    assert json.loads((folder / layout.VERIFY).read_text())["lines"][0]["detail"] == text


def test_any_text(tmp_path: Path) -> None:
    plain = tags_of(page(tmp_path, "plain text"))

    @fuzzed
    @given(text=st.text(alphabet="<>&\"'/=abs!-[]{}%\u2028 \n", min_size=1, max_size=30).filter(str.strip))
    def check(text: str) -> None:
        assert tags_of(page(tmp_path, text)) == plain

    check()
