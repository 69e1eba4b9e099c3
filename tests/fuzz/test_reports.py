"""Fuzzing: the report of an open run whose logs hold other values than ours ever would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateplay_rl.config.report import ReportConfig
from stateplay_rl.reporting.build import build_report
from stateplay_rl.reporting.page import render_html
from stateplay_rl.stores import layout
from tests.fuzz.damage import altered, damaged, fuzzed, reads_or_says_why
from tests.reporting.fixture_dirs import RunPlan, make_run

SMALL = ReportConfig(embedded_groups=0, gallery_conditions=0, png=False)


@pytest.mark.parametrize("name", [layout.METRICS, layout.HELDOUT, layout.TIMINGS, layout.ALARMS])
def test_logs_of_a_run(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    make_run(run, RunPlan(batches=2, heldout=2, evaluations=(0, 2), sealed=False, alarms=2, groups_per_batch=1))
    sound = (run / name).read_bytes()
    lines = [json.loads(line) for line in sound.splitlines()]

    def report() -> str:
        return render_html(build_report([run], tmp_path / "out", SMALL))

    @fuzzed
    @given(data=altered(lines).map(as_lines) | damaged(sound) | st.just(b""))
    def check(data: bytes) -> None:
        (run / name).write_bytes(data)
        reads_or_says_why(report)

    check()


def as_lines(value: object) -> bytes:
    lines = value if isinstance(value, list) else [value]
    return b"".join(json.dumps(line).encode("utf-8", "surrogatepass") + b"\n" for line in lines)
