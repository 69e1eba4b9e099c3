"""score -> request: breaks of the chain behind a paid score are found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from examples.drills.arena_groups import write_groups
from stateplay_rl.arena.serve_faults import FaultPlan
from stateplay_rl.checks.directory import run_directory
from stateplay_rl.cli.main import main
from tests.arena.test_serve import serving


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    groups = write_groups(root / "groups", 2, rendered=2)
    with serving(FaultPlan()) as server:
        arguments = ["score", str(groups), "--judge", "openai", "--base-url", server.base_url]
        assert main([*arguments, "--out", str(root / "scores"), "-q"]) == 0
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def line(root: Path, *search: Path):
    return next(found for found in run_directory(root / "scores", search) if found.name == "scores: requests")


def test_a_whole_chain_passes(root: Path) -> None:
    found = line(root)
    assert found.status == "passed"
    assert found.detail.startswith("2 requests")


def test_a_store_elsewhere_is_searched_for(root: Path) -> None:
    (root / "elsewhere").mkdir()
    (root / "requests").rename(root / "elsewhere" / "requests")
    assert line(root).status == "skipped"
    assert line(root, root / "elsewhere").status == "passed"


def test_breaks_are_named(root: Path) -> None:
    picture = next((root / "requests" / "images").iterdir())
    good = picture.read_bytes()
    picture.write_bytes(good[:-1] + b"x")
    assert picture.name in line(root).detail
    picture.unlink()
    assert line(root).status == "failed"
    picture.write_bytes(good)
    raw = next((root / "requests" / "raw").iterdir())
    value = json.loads(raw.read_text())
    raw.write_text(json.dumps({**value, "key": "0" * 64}))
    assert "another request" in line(root).detail
    raw.unlink()
    assert raw.name in line(root).detail
