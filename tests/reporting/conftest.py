"""Directories that several tests read; none of them is changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.reporting.fixture_dirs import (
    RunPlan,
    make_audit,
    make_conditions,
    make_groups,
    make_run,
    make_scores,
)

NASTY_PROMPT = "</script><script>alert('x')</script><b>keep away</b> & 'run'"


@dataclass(frozen=True)
class Dirs:
    """One directory of every kind."""

    root: Path
    conditions: Path
    groups: Path
    scores: Path
    audit: Path
    run: Path
    control: Path
    open_run: Path


@pytest.fixture(scope="session")
def dirs(tmp_path_factory: pytest.TempPathFactory) -> Dirs:
    """Small directories; every prompt tries to break out of the page."""
    root = tmp_path_factory.mktemp("sprl")
    names = ("conditions", "groups", "scores", "audit", "run", "control", "open_run")
    made = Dirs(root, *(root / name for name in names))
    make_conditions(made.conditions, 6, prompt=NASTY_PROMPT)
    group_ids = make_groups(made.groups, 5, prompt=NASTY_PROMPT)
    make_scores(made.scores, made.groups, group_ids, failed=group_ids[1:2])
    make_audit(made.audit)
    plan = RunPlan(batches=3, heldout=5, evaluations=(0, 3), alarms=3)
    make_run(made.run, plan, made.conditions, prompt=NASTY_PROMPT)
    control = RunPlan(batches=3, heldout=5, gain=1.0, evaluations=(0, 3), control=True, videos=False)
    make_run(made.control, control, made.conditions)
    make_run(made.open_run, RunPlan(batches=2, heldout=4, evaluations=(0,), sealed=False, videos=False))
    return made
