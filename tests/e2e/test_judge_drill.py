"""The short version of examples/drills/judge_drill.py: faults of every kind and two kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.drills.judge_drill import Drill, resent_unasked, run_drill


@pytest.mark.slow
def test_every_group_has_its_outcome_and_nothing_is_paid_twice(tmp_path: Path) -> None:
    drill = Drill(
        tmp_path / "drill", groups=40, in_flight=4, kills=2, delay=0.4, read_limit=4.0, timeout=0.05, reset=0.05
    )
    result = run_drill(drill)
    assert result.problems == []
    assert result.runs == 3
    assert sum(result.groups.values()) == 40
    assert result.groups.get("in_doubt", 0) > 0
    assert result.attempts["in_doubt"] > 0
    assert "in_doubt" not in result.groups_after_resend
    assert result.files_searched > 40


@pytest.mark.parametrize(
    "outcomes, bad",
    [
        (["completed"], False),
        (["rate_limit", "error", "completed"], False),
        (["malformed", "rate_limit", "completed"], False),
        (["wrong_model", "malformed"], False),
        (["completed", "completed"], True),
        (["held", "completed"], True),
        (["client_gone", "error"], False),
        (["reset", "rate_limit", "completed"], True),
        (["malformed", "malformed", "completed"], True),
    ],
)
def test_the_drill_sees_what_was_sent_again_unasked(outcomes: list[str], bad: bool) -> None:
    log = {("body", number): outcome for number, outcome in enumerate(outcomes)}
    assert bool(resent_unasked(log)) == bad
