"""The referee's section of a run's page, and the data check's of a conditions page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateplay_rl.reporting.referee_section import drift_by_horizon, drift_table, hud_check_section, referee_section
from stateplay_rl.reporting.run_data import Evaluation, RunData
from stateplay_rl.reporting.sources import Source, open_sources
from stateplay_rl.stores import layout
from tests.reporting.conftest import Dirs


def evaluation(seen: int, referee: dict[str, object] | None, evaluator: dict[str, object] | None = None) -> Evaluation:
    return Evaluation.from_record(
        {
            "batch": seen,
            "policy": "live",
            "candidates_seen": seen,
            "reward_mean": 50.0 + seen,
            "scores": {"a": [50.0]},
            "referee": referee,
            "evaluator": evaluator,
        }
    )


def run_of(*evaluations: Evaluation) -> RunData:
    return RunData({"heldout": {"policy": "live"}}, (), evaluations, (), (), {})


def told(low: float, high: float | None) -> dict[str, object]:
    parts = {"rules": {"right": 3, "wrong": 1, "unreadable": 1, "low": 0.6, "high": 0.75}}
    return {"name": "hud-sf3-v1.1", "low": low, "high": high, "coverage": 0.9, "parts": parts}


def test_no_referee_no_section() -> None:
    assert referee_section(run_of(evaluation(0, None))) is None


def test_curve_parts_and_what_the_checkout_lacks() -> None:
    answered = {"means": {"coverage": 0.5}, "missing": {"Att-Acc": "no function"}}
    section = referee_section(run_of(evaluation(0, told(80, 85), answered), evaluation(8, told(70, None), answered)))
    assert section is not None
    grid, parts, metrics, missing = section.blocks
    assert grid.kind == "charts"
    curve = grid.charts[0]
    assert curve.kind == "line"
    assert [series.y for series in curve.series] == [(85.0, None), (80.0, 70.0), (50.0, 58.0)]
    assert parts.kind == "table"
    assert parts.rows == (("rules", 3.0, 1.0, 1.0, 0.6, 0.75),)
    assert metrics.kind == "table"
    assert metrics.rows == (("coverage", 0.5, 0.5),)
    assert missing.kind == "prose"
    assert "Att-Acc" in missing.text


def test_the_referee_by_class_and_by_horizon() -> None:
    def broken_down(low: float) -> dict[str, object]:
        row = {"videos": 4, "low": low, "high": low + 5, "coverage": 0.9, "low_ci95": [low - 3, low + 3]}
        quarters = [
            {**row, "low": low - k, "frames": [9 * k, 9 * k + 9], "tracked": {"low": 0.5, "high": 0.75}}
            for k in range(4)
        ]
        return {**told(low, low + 5), "by_class": {"normal": row, "result_win": row}, "by_horizon": quarters}

    section = referee_section(run_of(evaluation(0, broken_down(80)), evaluation(8, broken_down(70))))
    assert section is not None
    tables = {block.key: block for block in section.blocks if block.kind == "table"}
    assert tables["referee-classes"].rows == tuple(
        (name, 4.0, 80.0, 70.0, 67.0, 73.0, 75.0, 0.9) for name in ("normal", "result_win")
    )
    last = tables["referee-horizon"].rows[3]
    assert last == ("27 to 36", 4.0, 77.0, 67.0, 67.0, 73.0, 75.0, 0.9, 0.5, 0.75)


def test_an_evaluation_before_there_were_quarters_still_has_a_page() -> None:
    section = referee_section(run_of(evaluation(0, told(80, 85))))
    assert section is not None
    assert {block.key for block in section.blocks if block.kind == "table"} == {"referee-parts"}


def test_commanded_moves_and_withheld_probes() -> None:
    def actions(low: float) -> dict[str, object]:
        bounds = {"right": 6, "wrong": 3, "unreadable": 1, "low": low, "high": 0.7}
        return {"obeyed": {"walk": bounds}, "real": {"walk": {"low": 0.9}}, "withheld": {"attack": "too few windows"}}

    records = [{"policy": "live", "batch": k, "actions": actions(0.5 + 0.1 * k)} for k in (0, 1)]
    section = referee_section(run_of(*(Evaluation.from_record(record) for record in records)))
    assert section is not None
    table, withheld = section.blocks
    assert table.kind == "table"
    assert table.rows == (("walk", 6.0, 3.0, 1.0, 0.5, 0.6, 0.7, 0.9),)
    assert withheld.kind == "prose"
    assert "attack: too few windows" in withheld.text


def test_pictures_by_horizon() -> None:
    assert drift_by_horizon(run_of(evaluation(0, None))) is None
    drift = {"ratio": {"luma": 1.0}, "by_horizon": [{"ratio": {"luma": 1.0 - 0.1 * k}} for k in range(4)]}
    table = drift_by_horizon(run_of(Evaluation.from_record({"policy": "live", "batch": 1, "picture_drift": drift})))
    assert table is not None
    assert table.rows == (("luma", 1.0, 0.9, 0.8, pytest.approx(0.7)),)


def test_pictures_beside_the_real_clips() -> None:
    assert drift_table(run_of(evaluation(0, None))) is None
    drift = {"generated": {"luma": 90.0}, "real": {"luma": 100.0}, "ratio": {"luma": 0.9}, "conditions": 3}
    later = {**drift, "generated": {"luma": 80.0}, "ratio": {"luma": 0.8}}
    record = {"policy": "live", "batch": 1, "candidates_seen": 1, "picture_drift": later}
    table = drift_table(
        run_of(Evaluation.from_record({**record, "batch": 0, "picture_drift": drift}), Evaluation.from_record(record))
    )
    assert table is not None
    assert table.rows == (("luma", 100.0, 90.0, 80.0, 0.8),)


def test_the_data_check_of_conditions(dirs: Dirs, tmp_path: Path) -> None:
    (source,) = open_sources([dirs.conditions])
    assert hud_check_section(source) is None, "no summary, or one without a check"
    check = {
        "reader": "sf3",
        "by_element": {"p1_hp": {"right": 7, "wrong": 1, "unreadable": 0, "low": 0.875, "high": 0.875}},
        "examples": [{"condition_id": "c1", "element": "p1_hp", "true": 90.0, "low": 10.0, "high": 12.0}],
    }
    (tmp_path / layout.SUMMARY).write_text(json.dumps({"hud_check": check}))
    section = hud_check_section(Source(**{**vars(source), "path": tmp_path}))
    assert section is not None
    table, examples = section.blocks
    assert table.kind == examples.kind == "table"
    assert table.rows == (("p1_hp", 7.0, 1.0, 0.0, 0.875, 0.875),)
    assert examples.rows == (("c1", "p1_hp", 90.0, 10.0, 12.0),)
