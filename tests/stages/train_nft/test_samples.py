"""From verdicts to samples: gating, the control, the plan of steps."""

from __future__ import annotations

from collections import Counter

import pytest

from stateplay_rl.stages.train_nft.samples import build_samples, plan_steps
from tests.stages.train_nft.helpers import judged, make_config

FAILED = judged(3, (None, None), reason="no_json: planted")


def config(**changes):
    return make_config(loss={"std_floor_points": 5.0, **changes})


def test_r_follows_the_scores() -> None:
    """Two groups of deviation 40 and 10: batch deviation over 10, 90, 45, 65 is about 29.5; Z = 5 x 29.5."""
    batch = build_samples([judged(0, (10.0, 90.0)), judged(1, (45.0, 65.0))], config(), 0)
    values = [s.r for s in batch.samples]
    deviation = ((42.5**2 + 37.5**2 + 7.5**2 + 12.5**2) / 4) ** 0.5
    assert values == pytest.approx([0.5 + 0.5 * d / (5 * deviation) for d in (-40, 40, -10, 10)])
    own = build_samples([judged(0, (10.0, 90.0)), judged(1, (45.0, 65.0))], config(deviation="group"), 0)
    assert [s.r for s in own.samples] == pytest.approx([0.4, 0.6, 0.4, 0.6])
    assert batch.r_histogram()[3:6] == [1, 1, 2] or sum(batch.r_histogram()) == 4


def test_a_failed_group_is_gated_as_a_whole_and_never_trains() -> None:
    partial = judged(4, (50.0, None), reason="partial: candidate 1 has no score")
    for gating in ("standard", "guard"):
        batch = build_samples([judged(0), FAILED, partial], config(gating=gating), 0)
        assert {s.group_id for s in batch.samples} == {"g0"}
        assert batch.optimality.gate.reasons == (None, "failed", "failed")
    only = build_samples([FAILED], config(), 0)
    assert only.samples == ()
    assert only.r_histogram() == [0] * 10
    assert plan_steps(only.samples, config(), 0) == []


def test_a_failure_does_not_move_the_other_groups() -> None:
    with_failure = build_samples([judged(0), judged(1, (40.0, 60.0)), FAILED], config(), 0)
    without = build_samples([judged(0), judged(1, (40.0, 60.0))], config(), 0)
    assert [s.r for s in with_failure.samples] == [s.r for s in without.samples]


def test_guard_leaves_out_what_standard_trains() -> None:
    groups = [
        judged(0, (10.0, 90.0)),
        judged(1, (70.0, 70.0)),
        judged(2, (70.0, 72.0)),
        judged(3, (5.0, 45.0)),
    ]
    standard = build_samples(groups, config(), 0)
    assert {s.group_id for s in standard.samples} == {"g0", "g1", "g2", "g3"}
    assert [s.r for s in standard.samples if s.group_id == "g1"] == [0.5, 0.5]
    guard = build_samples(groups, config(gating="guard"), 0)
    assert {s.group_id for s in guard.samples} == {"g0"}
    assert guard.optimality.gate.reasons == (None, "tied", "narrow", "all_bad")
    # Mean and deviation use every judged group, before guard leaves any out.
    kept = [s.r for s in standard.samples if s.group_id == "g0"]
    assert [s.r for s in guard.samples] == kept


def test_the_control_permutes_within_groups_only() -> None:
    groups = [judged(k, (float(k), 10.0 + k, 20.0 + k, 90.0 - k)) for k in range(8)]
    plain = make_config(sampling={"candidates": 4, "steps": 3})
    control = make_config(sampling={"candidates": 4, "steps": 3}, control="shuffled_rewards")
    used = build_samples(groups, control, 2).scores_used
    assert [Counter(row) for row in used] == [Counter(g.scores) for g in groups]
    assert any(tuple(row) != g.scores for row, g in zip(used, groups, strict=True))
    assert build_samples(groups, control, 2).scores_used == used
    assert build_samples(groups, control, 3).scores_used != used
    assert build_samples(groups[4:], control, 2).scores_used == used[4:]
    assert build_samples(groups, plain, 2).scores_used == tuple(g.scores for g in groups)
    spread = [sorted(s.r for s in build_samples(groups, c, 2).samples) for c in (plain, control)]
    assert spread[0] == pytest.approx(spread[1])


def test_every_pass_takes_every_sample_once_and_the_last_step_may_be_small() -> None:
    settings = make_config(optimizer={"samples_per_step": 4, "inner_epochs": 2})
    samples = build_samples([judged(k) for k in range(3)], settings, 0).samples
    steps = plan_steps(samples, settings, 0)
    assert [len(step) for step in steps] == [4, 2, 4, 2]
    for inner_pass in (steps[:2], steps[2:]):
        taken = [(s.group_id, s.candidate) for step in inner_pass for s in step]
        assert sorted(taken) == [(s.group_id, s.candidate) for s in samples]
    assert [s for step in steps[:2] for s in step] != [s for step in steps[2:] for s in step]
    assert plan_steps(samples, settings, 0) == steps
    assert plan_steps(samples, settings, 1) != steps
