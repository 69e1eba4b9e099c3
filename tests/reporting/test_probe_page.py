"""The page of a probe, from a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.drills.arena_groups import write_groups
from stateplay_rl.arena.serve_faults import FaultPlan
from stateplay_rl.cli.main import main
from stateplay_rl.config.report import ReportConfig
from stateplay_rl.errors import CorruptionError
from stateplay_rl.reporting.blocks import SourcePage, Table
from stateplay_rl.reporting.build import build_report
from tests.arena.test_serve import serving


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups, shown to a noisy judge that likes the first place."""
    root = tmp_path_factory.mktemp("probe")
    groups = write_groups(root / "groups", 2, rendered=2)
    with serving(FaultPlan(noise=4.0, position_bias=(12.0, 0.0, 0.0, 0.0), seed=1)) as server:
        arguments = ["score", str(groups), "--judge", "openai", "--base-url", server.base_url, "--probe", "-q"]
        assert main([*arguments, "--set", "judge.protocol.frames=4", "--out", str(root / "probe")]) == 0
    return root / "probe"


def page_of(folder: Path) -> SourcePage:
    return build_report([folder], folder.parent / "report", ReportConfig()).pages[0]


def tables(page: SourcePage) -> dict[str, Table]:
    return {b.key: b for s in page.sections for b in s.blocks if isinstance(b, Table)}


def test_the_first_place_is_favoured_and_the_page_shows_it(probe: Path) -> None:
    page = page_of(probe)
    assert "openai:" in page.headline.verdict
    effects = [row[1] for row in tables(page)["position"].rows]
    assert len(effects) == 4
    assert effects[0] == max(effects)
    assert effects[0] > 3


def test_planted_candidates_are_ranked(probe: Path) -> None:
    planted = {row[0]: row for row in tables(page_of(probe))["planted"].rows}
    assert planted["frozen"][3] > planted["reference"][3]


def test_every_showing_is_counted(probe: Path) -> None:
    rows = tables(page_of(probe))["showings"].rows
    lines = (probe / "showings.jsonl").read_text().splitlines()
    assert sum(row[1] for row in rows) == len(lines)


def test_a_damaged_probe_is_named(probe: Path, tmp_path: Path) -> None:
    before = (probe / "probe.json").read_bytes()
    try:
        (probe / "probe.json").write_bytes(before[:40])
        with pytest.raises(CorruptionError, match=r"probe\.json"):
            page_of(probe)
    finally:
        (probe / "probe.json").write_bytes(before)
