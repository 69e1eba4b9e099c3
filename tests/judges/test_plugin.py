"""Plug-ins: strict names, and faults that name the plug-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.errors import CorruptionError, UsageError
from stateplay_rl.judges.plugin import load_plugin, split_name
from tests.judges.judge_fakes import stored_group

GROUP = stored_group()
SOURCE = """
from stateplay_rl.errors import CorruptionError
from stateplay_rl.judges.base import failed, scored

class Good:
    judge_id = "good"
    protocol_sha256 = "a" * 64
    def __init__(self, base=10.0):
        self.base = base
    def score_group(self, group):
        return scored([self.base + k for k in range(group.record.candidates)])

class Raises(Good):
    def score_group(self, group):
        raise KeyError("lost")

class Corrupt(Good):
    def score_group(self, group):
        raise CorruptionError("bad video")

class Tells(Good):
    def score_group(self, group):
        return failed(4, "401 for sk-plug-in-0123", details={"answer": ["no sk-plug-in-0123"], "sk-plug-in-0123": 1})

class NotAVerdict(Good):
    def score_group(self, group):
        return [1, 2, 3, 4]

class NotJson(Good):
    def score_group(self, group):
        return scored([1.0] * 4, details={"x": float("nan")})

class NoHash(Good):
    protocol_sha256 = "abc"

class NoId(Good):
    judge_id = None

class NoMethod:
    judge_id = "x"
    protocol_sha256 = "a" * 64

function = lambda: None
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"plugin_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_plugin_scores_with_its_options(module: str) -> None:
    judge = load_plugin(f"{module}:Good", {"base": 20.0})
    assert judge.judge_id == "good"
    assert judge.score_group(GROUP).scores == (20.0, 21.0, 22.0, 23.0)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "judge",
        "pkg.mod",
        "pkg.mod:",
        ":Class",
        "pkg.mod:Class:Other",
        "pkg..mod:Class",
        ".mod:Class",
        "../evil:Class",
        "/tmp/evil:Class",
        "pkg/mod:Class",
        "pkg\\mod:Class",
        "pkg.mod:Class.attr",
        "pkg.mod:Class()",
        "pkg mod:Class",
        "pkg.mod:Class\n",
        "pkg.1mod:Class",
        "pkg.import:Class",
        "pkg.mod:class",
        "pаckage.mod:Class",  # a Cyrillic letter
        "a" * 300 + ":B",
    ],
)
def test_names_that_are_no_plain_dotted_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        split_name(name)


def test_good_names() -> None:
    assert split_name("my_pkg.judges.mine:Judge2") == ("my_pkg.judges.mine", "Judge2")


@pytest.mark.parametrize(
    "suffix, word",
    [
        (":Missing", "no class Missing"),
        (":function", "no class function"),
        ("_absent:Good", "cannot import"),
        (":NoHash", "protocol_sha256"),
        (":NoId", "judge_id"),
        (":NoMethod", "score_group"),
    ],
)
def test_faults_of_loading(module: str, suffix: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        load_plugin(module + suffix, {})


def test_unknown_options_and_broken_modules(module: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be constructed"):
        load_plugin(f"{module}:Good", {"nonsense": 1})
    (tmp_path / f"{module}_broken.py").write_text("raise RuntimeError('boom')")
    with pytest.raises(UsageError, match="boom"):
        load_plugin(f"{module}_broken:Good", {})


def test_faults_of_scoring_name_plugin_and_group(module: str) -> None:
    with pytest.raises(UsageError, match=r"Raises failed on group g0: KeyError"):
        load_plugin(f"{module}:Raises", {}).score_group(GROUP)
    with pytest.raises(UsageError, match="returned list"):
        load_plugin(f"{module}:NotAVerdict", {}).score_group(GROUP)
    with pytest.raises(UsageError, match="not JSON"):
        load_plugin(f"{module}:NotJson", {}).score_group(GROUP)
    with pytest.raises(CorruptionError, match="bad video"):
        load_plugin(f"{module}:Corrupt", {}).score_group(GROUP)


def test_a_key_that_a_plug_in_repeats_is_not_stored(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-plug-in-0123")
    verdict = load_plugin(f"{module}:Tells", {}).score_group(GROUP)
    assert verdict.reason == "401 for <MY_API_KEY>"
    assert verdict.details == {"answer": ["no <MY_API_KEY>"], "<MY_API_KEY>": 1}
