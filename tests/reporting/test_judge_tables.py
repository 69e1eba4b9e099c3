"""Cost and agreement on the pages of scores directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.drills.arena_groups import write_groups
from stateplay_rl.arena.serve_faults import FaultPlan
from stateplay_rl.cli.main import main
from stateplay_rl.config.report import ReportConfig
from stateplay_rl.reporting.blocks import Table
from stateplay_rl.reporting.build import build_report
from tests.arena.test_serve import serving


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four groups, judged by the referee and over HTTP with some noise."""
    root = tmp_path_factory.mktemp("judged")
    groups = write_groups(root / "groups", 4, rendered=4)
    with serving(FaultPlan(noise=3.0, low=20, high=80, malformed=0.3, seed=2)) as server:
        arguments = ["score", str(groups), "--judge", "openai", "--base-url", server.base_url]
        assert main([*arguments, "--out", str(root / "http"), "-q"]) == 0
    assert main(["score", str(groups), "--judge", "referee", "--out", str(root / "direct"), "-q"]) == 0
    return root


def tables(scored: Path, tmp_path: Path, *names: str) -> dict[str, list[Table]]:
    page = build_report([scored / name for name in names], tmp_path / "report", ReportConfig())
    return {
        source.name: [b for section in source.sections for b in section.blocks if isinstance(b, Table)]
        for source in page.pages
    }


def test_agreement_is_shown_for_two_directories_of_the_same_groups(scored: Path, tmp_path: Path) -> None:
    found = tables(scored, tmp_path, "http", "direct")
    for name, other in (("http", "direct"), ("direct", "http")):
        (table,) = [t for t in found[name] if t.key.startswith("agreement")]
        assert table.title == f"{name} and {other}"
        everything = table.rows[0]
        assert everything[0] == "all"
        assert everything[2] > 0.9


def test_no_agreement_without_another_judge(scored: Path, tmp_path: Path) -> None:
    assert not [t for t in tables(scored, tmp_path, "http")["http"] if t.key.startswith("agreement")]


def test_costs_are_shown_for_paid_judges_only(scored: Path, tmp_path: Path) -> None:
    found = tables(scored, tmp_path, "http", "direct")
    (table,) = [t for t in found["http"] if t.key == "costs"]
    assert table.rows[-1][0] == "all"
    assert table.rows[-1][1] == sum(row[1] for row in table.rows[:-1])
    assert table.rows[-1][5] is None
    assert not [t for t in found["direct"] if t.key == "costs"]
