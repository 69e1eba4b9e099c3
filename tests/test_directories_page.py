"""The helper that holds `docs/directories.md` against real directories finds what is missing on either side."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.stores import layout
from tests import directories_page
from tests.directories_page import documented, never_there, undocumented


def test_every_kind_of_directory_has_its_section() -> None:
    for kind in set(layout.WRITTEN_BY) - {"probe"}:
        assert len(documented(kind)) > len(documented_everywhere())
    with pytest.raises(KeyError):
        documented("nothing")


def documented_everywhere() -> list[str]:
    text = directories_page.PAGE.read_text(encoding="utf-8")
    return documented("empty", f"{text}\n## `empty/`\n")


def test_a_file_that_nobody_told_of_and_one_that_is_not_there_are_found(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    for name in ("manifest.json", "config.yaml", "conditions.parquet", "frames/a.png", "frames/a.gif", "extra.txt"):
        (tmp_path / name).touch()
    assert undocumented(tmp_path, "conditions") == ["extra.txt", "frames/a.gif"]
    assert never_there(tmp_path, "conditions") == ["rejected.parquet", "summary.json", "unfinished.json"]
