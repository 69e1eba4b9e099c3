"""What the page of a run says about parts that were not computed."""

from __future__ import annotations

import pytest

from stateplay_rl.reporting.run_data import RunData
from stateplay_rl.reporting.run_page import _loss
from tests.reporting.fixture_dirs import RunPlan, metrics_line


@pytest.mark.parametrize("mode", ["coupling", "transition"])
def test_a_part_without_a_gradient_is_named_as_such(mode: str) -> None:
    line = metrics_line(0, RunPlan())
    parts = dict(line["loss"])  # type: ignore[call-overload]
    config = {"mode": mode, "loss": {"full_schedule": False}}
    text = repr(_loss(RunData(config, ({**line, "loss": {**parts, "transition_real": None}},), (), (), (), {})))
    assert "Not computed in this run: " in text
    assert ("no gradient in mode coupling" in text) is (mode == "coupling")
    whole = {**line, "loss": {**parts, "transition_real": 2.0}}
    assert "no gradient" not in repr(_loss(RunData(config, (whole,), (), (), (), {})))
