"""The page of a student judge: the gate in words, baselines and ablations, calibration; damaged files are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.config.report import ReportConfig
from stateplay_rl.errors import CorruptionError
from stateplay_rl.reporting.blocks import SourcePage, Table
from stateplay_rl.reporting.build import build_report
from stateplay_rl.reporting.page import render_html
from stateplay_rl.stores import layout
from tests.reporting.fixture_dirs import open_output


def measured(agreement: float | None, **more: Any) -> dict[str, Any]:
    ends = None if agreement is None else [agreement - 0.05, agreement + 0.05]
    return {
        "groups": 40,
        "pairs": 240,
        "pairwise_agreement": agreement,
        "top_agreement": 0.5,
        "bottom_agreement": 0.6,
        "spearman": 0.4,
        "mae_points": 8.0,
        "parse_failures": 0,
        "pairwise_agreement_interval": ends,
        **more,
    }


def evaluation(**changes: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "split": "test",
        "reading": "expected",
        "clusters": 31,
        "student": measured(0.71, calibration_error_points=3.5),
        "by_class": {"normal": measured(0.7), "macro_fail": measured(0.6)},
        "by_position": [
            {"position": k, "judge_mean": 50.0, "student_mean": 49.0, "mae_points": 8.0, "pairwise_agreement": 0.7}
            for k in range(4)
        ],
        "calibration": [
            {"low": 10.0 * k, "high": 10.0 * k + 10, "count": 5 + k, "student_mean": 10.0 * k + 5, "judge_mean": 50.0}
            for k in range(10)
        ],
        "baselines": {"constant": measured(0.3), "reference_hidden": measured(None), "actions_hidden": measured(0.66)},
        "best_epoch": 2,
        "judge_id": "openai:model",
        **changes,
    }


def gate(passed: bool) -> dict[str, Any]:
    return {
        "version": 1,
        "ran": True,
        "passed": passed,
        "adapter_sha256": "ad" * 32,
        "judge_protocol_sha256": "bc" * 32,
        "data": {"sha256": "da" * 32, "groups": {"train": 200, "validation": 40, "test": 40}},
        "thresholds": {"pairwise_agreement": 0.6},
        "checks": [
            {"name": "pairwise_agreement", "value": 0.71, "rule": "at least", "threshold": 0.6, "passed": True},
            {
                "name": "lower_bound_above_actions_hidden",
                "value": 0.66,
                "rule": "above",
                "threshold": 0.66,
                "passed": passed,
            },
        ],
        "not_measurable": ["reference_hidden"],
        "advice": "start stage C" if passed else "grow stage A by 280 conditions",
    }


def write_student(out: Path, *, passed: bool = True, **changes: Any) -> Path:
    with open_output(out, "reward_model", {}, FrozenConfig()) as output:
        output.write_json(layout.EVALUATION, evaluation(**changes))
        output.write_json(layout.GATE, gate(passed))
        lines = [{"step": n, "epoch": 1 + n // 5, "loss": 3.0 / (1 + n)} for n in range(10)]
        lines += [{"epoch": 1, "validation_loss": 1.0}, {"epoch": 2, "validation_loss": 0.5}]
        output.write_text("train.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        output.seal()
    return out


def page_of(folder: Path) -> SourcePage:
    return build_report([folder], folder.parent / "report", ReportConfig()).pages[0]


def test_a_passed_gate_is_the_headline(tmp_path: Path) -> None:
    page = page_of(write_student(tmp_path / "student"))
    assert page.headline.verdict == "Gate passed"
    assert page.headline.tone == "good"
    assert "orders 71.0 % [66.0 %, 76.0 %] of the pairs as openai:model does" in page.headline.sentences[0]
    assert ("adapter sha256", "ad" * 32) in page.lineage.facts


def test_what_was_not_met_and_what_to_do_stand_in_words(tmp_path: Path) -> None:
    page = page_of(write_student(tmp_path / "student", passed=False))
    assert page.headline.tone == "bad"
    assert "Not met: lower bound above actions hidden." in page.headline.sentences
    assert "Next: grow stage A by 280 conditions." in page.headline.sentences


def test_ablations_stand_beside_the_student_and_a_missing_one_is_a_dash(tmp_path: Path) -> None:
    page = page_of(write_student(tmp_path / "student"))
    (table,) = [b for s in page.sections if s.key == "ablations" for b in s.blocks if isinstance(b, Table)]
    rows = {row[0]: row for row in table.rows}
    assert rows["actions hidden"][1:4] == ("ablation", 40, 0.66)
    assert rows["constant"][1] == "baseline"
    assert rows["reference hidden"][3] is None


def test_calibration_without_a_parsed_answer_says_so(tmp_path: Path) -> None:
    page = page_of(write_student(tmp_path / "student", calibration=[]))
    (section,) = [s for s in page.sections if s.key == "calibration"]
    assert [block.kind for block in section.blocks] == ["prose"]


def test_the_page_renders_and_names_its_files(tmp_path: Path) -> None:
    folder = write_student(tmp_path / "student")
    html = render_html(build_report([folder], tmp_path / "report", ReportConfig()))
    for text in ("Gate passed", "evaluation.json: calibration", "train.jsonl: loss", "By place"):
        assert text in html


def test_a_damaged_gate_is_named(tmp_path: Path) -> None:
    folder = write_student(tmp_path / "student")
    (folder / layout.GATE).write_text("{")
    with pytest.raises(CorruptionError, match=r"gate\.json"):
        page_of(folder)
