"""Shares of a segment, windows of audits, names and times: for any sizes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateplay_rl.config.train_nft import AuditsConfig
from stateplay_rl.stages.train_nft.audits import audit_window
from stateplay_rl.stages.train_nft.eta import in_words
from stateplay_rl.stages.train_nft.naming import planned_steps, run_name
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from tests.stages.train_nft.helpers import make_config


@settings(max_examples=100, deadline=None)
@given(conditions=st.integers(1, 500), per_batch=st.integers(1, 40), first=st.integers(0, 50))
def test_batches_share_a_segment_without_rest(conditions: int, per_batch: int, first: int) -> None:
    plan = SegmentPlan("a", 0, first, conditions, per_batch)
    sizes = plan.sizes()
    assert sum(sizes) == conditions
    assert all(size == per_batch for size in sizes[:-1])
    assert 0 < sizes[-1] <= per_batch
    assert plan.end_batch == first + len(sizes)


@settings(max_examples=100, deadline=None)
@given(
    conditions=st.integers(1, 400),
    per_batch=st.integers(1, 30),
    first_conditions=st.integers(0, 90),
    every=st.integers(1, 9),
    groups=st.integers(1, 60),
)
def test_audits_cover_the_first_conditions_and_then_enough_groups(
    conditions: int, per_batch: int, first_conditions: int, every: int, groups: int
) -> None:
    """The first N conditions exactly; every window that begins is closed once, and holds what it should."""
    plan = SegmentPlan("c", 0, 7, conditions, per_batch)
    config = AuditsConfig(
        judge={"name": "referee"}, first_conditions=first_conditions, every_batches=every, groups=groups
    )
    order = [f"c{n}" for n in range(conditions)]
    audited: list[str] = []
    open_window = 0
    for batch in range(plan.first_batch, plan.end_batch):
        start = (batch - plan.first_batch) * per_batch
        members = order[start : start + plan.conditions_of(batch)]
        window = audit_window(plan, config, batch, members)
        assert window.members <= set(members)
        audited += [c for c in members if c in window.members]
        open_window += len(window.members)
        if window.ends:
            assert open_window > 0
            open_window = 0
    assert audited[:first_conditions] == order[: min(first_conditions, conditions)]
    assert len(set(audited)) == len(audited)
    if every * per_batch >= groups:
        # Windows never overlap then: each one that began was closed.
        assert open_window == 0


def test_the_plan_of_the_specification() -> None:
    """56 first conditions in two batches of 28; then one batch in every hundred."""
    plan = SegmentPlan("c", 0, 82, 8000, 28)
    config = AuditsConfig(judge={"name": "referee"})
    members = [str(n) for n in range(28)]
    hit = [b for b in range(82, plan.end_batch) if audit_window(plan, config, b, members).members]
    assert hit == [82, 83, 182, 282]
    assert [audit_window(plan, config, b, members).ends for b in hit] == [False, True, True, True]
    stage_a = SegmentPlan("a", 0, 0, 2000, 28)
    assert not audit_window(stage_a, config, 0, members).members
    assert not audit_window(plan, AuditsConfig(), 82, members).members


def test_names_carry_what_matters() -> None:
    """The defaults: 72 batches, 71 of 28 conditions (112 samples: 4 steps a pass) and one of 12 (2 steps), 2 passes."""
    config = make_config(
        stage_conditions=2000,
        conditions_per_batch=28,
        sampling={"candidates": 4},
        optimizer={},
        experiment="b_only",
    )
    plan = SegmentPlan("a", 0, 0, 2000, 28)
    assert planned_steps(config, plan.sizes()) == 2 * (71 * 4 + 2)
    assert run_name(config, plan) == "b_only_flr2e-05_blr0.0001_schedsteps572_swarmup0_bwarmup0"
    full = config.model_copy(update={"mode": "full"})
    assert "_flr2e-05_blr2e-05_" in run_name(full, plan)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3.2, "3 s"), (119.0, "119 s"), (600.0, "10 min"), (9000.0, "2.5 h"), (4 * 86400.0, "4.0 days")],
)
def test_times_are_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
