"""What the demo makes of its runs' files: stage A's gain alone, and a refused stage C as a result."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("demo")


def write_lines(file: Path, *lines: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_gate(out: Path, passed: bool) -> None:
    folder = out / "reward_model"
    folder.mkdir(parents=True)
    checks = [{"name": "pairwise_agreement", "passed": passed}, {"name": "parse_failures", "passed": True}]
    (folder / "gate.json").write_text(json.dumps({"passed": passed, "checks": checks}))
    student = {"pairwise_agreement": 0.5, "pairwise_agreement_interval": [0.4, 0.6], "groups": 9}
    evaluation = {"student": student, "baselines": {"untrained": {"pairwise_agreement": 0.45}}}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))


def test_the_gain_is_that_of_stage_a(demo: Any, tmp_path: Path) -> None:
    lines = [{"stage": stage, "batch": batch} for stage, batch in (("a", 0), ("a", 10), ("c", 10), ("c", 11))]
    write_lines(tmp_path / "heldout.jsonl", *lines)
    assert [line["batch"] for line in demo.heldout_lines(tmp_path)] == [0, 10]


@pytest.mark.parametrize(("code", "passed", "expected"), [(0, True, True), (4, False, False), (4, True, SystemExit)])
def test_stage_c_runs_or_is_refused_by_the_gate_and_by_nothing_else(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, passed: bool, expected: Any
) -> None:
    write_gate(tmp_path, passed)
    monkeypatch.setattr(demo.Demo, "run", lambda self, name, *_, may_end_with=(): code if 4 in may_end_with else 0)
    monkeypatch.setattr(demo.Demo, "run_on_two", lambda self, name, *_: None)
    running = demo.Demo(tmp_path, seed=0, clips=1)
    if expected is SystemExit:
        with pytest.raises(SystemExit):
            demo.student(running)
    else:
        assert demo.student(running) is expected


def test_the_last_lines_say_what_the_student_did_or_why_not(demo: Any, tmp_path: Path) -> None:
    write_gate(tmp_path / "bad", passed=False)
    write_lines(tmp_path / "bad" / "run" / "metrics.jsonl", {"stage": "a"})
    rows = dict(demo.student_rows(demo.student_summary(demo.Demo(tmp_path / "bad", 0, 1), stage_c=False)))
    assert rows["student's gate"] == "not passed: pairwise_agreement"
    assert rows["stage C"] == "refused by the gate"
    write_gate(tmp_path / "good", passed=True)
    batch = {"stage": "c", "groups": 16, "reward_mean": 80.04, "referee_mean": 81.16}
    write_lines(tmp_path / "good" / "run" / "metrics.jsonl", {"stage": "a"}, batch)
    rows = dict(demo.student_rows(demo.student_summary(demo.Demo(tmp_path / "good", 0, 1), stage_c=True)))
    assert rows["student's gate"] == "passed"
    assert "16 groups: mean 80.0, the referee on the same 81.2" in rows["stage C, judged by the student"]
