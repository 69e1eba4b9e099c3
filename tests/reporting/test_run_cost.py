"""Time, memory and money of a run."""

from __future__ import annotations

from pathlib import Path

from stateplay_rl.reporting.blocks import Section
from stateplay_rl.reporting.numbers import MISSING
from stateplay_rl.reporting.run_cost import cost_section
from stateplay_rl.reporting.run_files import read_run
from stateplay_rl.reporting.sources import open_sources
from tests.reporting.fixture_dirs import RunPlan, make_run


def section(out: Path, requests: dict[str, float | None] | None) -> Section:
    make_run(out, RunPlan(batches=3, evaluations=(), groups_per_batch=0, requests=requests))
    (source,) = open_sources([out])
    return cost_section(read_run(source))


def stats(of: Section) -> dict[str, str]:
    return {stat.label: stat.value for block in of.blocks if block.kind == "stats" for stat in block.stats}


def test_a_judge_that_is_not_paid_shows_time_and_memory_only(tmp_path: Path) -> None:
    found = section(tmp_path / "run", None)
    assert found.title == "Time and memory"
    assert stats(found) == {}
    (grid,) = (block for block in found.blocks if block.kind == "charts")
    assert [chart.key for chart in grid.charts] == ["time", "memory"]


def test_requests_are_added_up_and_refused_ones_told_apart(tmp_path: Path) -> None:
    found = section(tmp_path / "run", {"attempts": 7, "billed": 5, "cost": 0.125})
    assert found.title == "Time, memory and money"
    assert stats(found) == {"requests": "21", "billed, or in doubt": "15", "cost": "0.38"}
    (grid,) = (block for block in found.blocks if block.kind == "charts")
    chart = next(chart for chart in grid.charts if chart.key == "requests")
    assert chart.kind == "bar"
    assert [series.values for series in chart.series] == [(5.0, 5.0, 5.0), (2.0, 2.0, 2.0)]


def test_without_a_price_there_is_no_cost(tmp_path: Path) -> None:
    found = section(tmp_path / "run", {"attempts": 7, "billed": 5, "cost": None})
    assert stats(found)["cost"] == MISSING
