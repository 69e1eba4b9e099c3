"""From scores to r: golden statistics, ties, gating."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stateplay_rl.nft.advantage import batch_optimality, gate, optimality

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "group_advantage.json").read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: f"global_std={c['global_std']}")
def test_golden_advantages(case):
    scores = torch.tensor(case["score"], dtype=torch.float64).reshape(-1, 4)
    wanted = torch.tensor(case["advantage"], dtype=torch.float64).reshape(-1, 4)
    of = "batch" if case["global_std"] else "group"
    result = optimality(scores, advantage_clip=5.0, std_floor_points=0.0, deviation_of=of)
    tied = result.tied_G
    assert tied.tolist() == [False, False, True, False, False, False]
    assert torch.equal(result.advantage_GK[tied], torch.zeros(1, 4, dtype=torch.float64))
    error = (result.advantage_GK - wanted).abs()[~tied] / wanted.abs()[~tied]
    assert error.max() < 1e-4


def test_hand_values():
    """Scores 40, 60 | 80, 100 (pairs twice): mu 50 | 90; deviation within = 10 (group); clip 2: Z = 20.

    (60 - 50)/20 = 1/2 -> r = 0.75. Batch: all of 40 60 40 60 80 100 80 100, mean 70, variance
    (900 + 100 + 100 + 900)/4 = 500, deviation 22.36; Z = 44.72; r = 0.5 + 0.5 * 10/44.72 = 0.6118.
    Floor 25 points: Z = 50, r = 0.6.
    """
    scores = torch.tensor([[40.0, 60, 40, 60], [80, 100, 80, 100]])
    of_group = optimality(scores, advantage_clip=2.0, std_floor_points=5.0, deviation_of="group")
    assert of_group.r_GK.tolist() == [[0.25, 0.75, 0.25, 0.75]] * 2
    of_batch = optimality(scores, advantage_clip=2.0, std_floor_points=5.0, deviation_of="batch")
    assert of_batch.std_G.tolist() == pytest.approx([500**0.5] * 2)
    assert of_batch.r_GK[0, 1].item() == pytest.approx(0.5 + 5 / (2 * 500**0.5))
    floored = optimality(scores, advantage_clip=2.0, std_floor_points=25.0)
    assert floored.r_GK[1, 1].item() == pytest.approx(0.6)


@given(st.floats(0, 100), st.integers(2, 7), st.sampled_from(["group", "batch"]))
def test_equal_scores_are_one_half_exactly(score, candidates, of):
    """Also where the mean of equal floats is not that float (three times 0.1), and with floor 0."""
    scores = torch.full((1, candidates), score, dtype=torch.float64)
    result = optimality(scores, advantage_clip=5.0, std_floor_points=0.0, deviation_of=of)
    assert bool((result.r_GK == 0.5).all())


POINTS = st.lists(st.lists(st.integers(0, 100), min_size=4, max_size=4), min_size=1, max_size=8)


@given(POINTS, st.sampled_from(["group", "batch"]), st.floats(0, 20), st.floats(0.2, 8))
def test_r_is_bounded_ordered_and_shift_invariant(points, of, floor, clip):
    scores = torch.tensor(points, dtype=torch.float64)
    kwargs = {"advantage_clip": clip, "std_floor_points": floor, "deviation_of": of}
    r = optimality(scores, **kwargs).r_GK
    assert bool(((r >= 0) & (r <= 1)).all())
    shifted = optimality(scores + 7.0, **kwargs).r_GK
    assert torch.allclose(r, shifted, atol=1e-9)
    order = scores.argsort(dim=1)
    assert bool((r.gather(1, order).diff(dim=1) >= -1e-12).all())


@given(POINTS)
def test_unclipped_advantages_cancel_within_a_group(points):
    result = optimality(torch.tensor(points).double(), advantage_clip=5.0, std_floor_points=5.0)
    assert bool((result.advantage_GK.sum(dim=1).abs() < 1e-9).all())


def test_a_failure_is_not_a_score():
    with pytest.raises(ValueError, match="finite"):
        optimality(torch.tensor([[1.0, float("nan")]]), advantage_clip=5.0, std_floor_points=5.0)
    with pytest.raises(ValueError, match="finite"):
        gate([[1.0, float("nan")]], candidates=2)


SCORES = [
    [90.0, 20.0, 50.0, 60.0],
    [90.0, None, 50.0, 60.0],
    [55.0, 55.0, 55.0, 55.0],
    [55.0, 56.0, 55.0, 56.0],
    [0.0, 49.0, 10.0, 20.0],
    [None, None, None, None],
    [90.0, 20.0, 50.0],
]


def test_standard_gates_only_what_was_not_fully_judged():
    result = gate(SCORES, "standard", candidates=4)
    assert result.reasons == (None, "failed", None, None, None, "failed", "failed")
    assert result.trains == result.judged
    assert result.count("failed") == 3


def test_guard_also_gates_tied_narrow_and_all_bad_groups():
    result = gate(SCORES, "guard", candidates=4, min_spread_points=2.0)
    assert result.reasons == (None, "failed", "tied", "narrow", "all_bad", "failed", "failed")
    assert result.judged == (True, False, True, True, True, False, False)


def test_mean_and_deviation_use_what_guard_leaves_out():
    """Guard leaves three judged groups out, but all 16 scores make the deviation."""
    batch_gate = gate(SCORES, "guard", candidates=4, min_spread_points=2.0)
    result = batch_optimality(SCORES, batch_gate=batch_gate, advantage_clip=5.0, std_floor_points=5.0)
    judged = torch.tensor([SCORES[g] for g in (0, 2, 3, 4)], dtype=torch.float64)
    assert result.optimality.std_G[0].item() == pytest.approx(judged.std(correction=0).item())
    assert result.rows == (0, None, 1, 2, 3, None, None)
    assert result.r(2) == (0.5, 0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="no r"):
        result.r(1)


def test_a_batch_without_any_judged_group_has_no_r():
    scores = [[None] * 4, [1.0, None, 2.0, 3.0]]
    result = batch_optimality(scores, batch_gate=gate(scores, candidates=4), advantage_clip=5.0, std_floor_points=5.0)
    assert result.rows == (None, None)


def test_four_bad_videos_never_reach_one_by_default():
    """Deviation floor 5, clip 5: Z >= 25, so a lead of 9 points over the mean gives r = 0.5 + 9/50 = 0.68."""
    r = optimality(torch.tensor([[0.0, 0, 0, 12]]), advantage_clip=5.0, std_floor_points=5.0).r_GK
    assert r.max().item() == pytest.approx(0.5 + 0.5 * 9 / (5 * 27**0.5))
    assert r.max() < 0.7


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="mode"):
        gate(SCORES, "other", candidates=4)
    with pytest.raises(ValueError, match="advantage_clip"):
        optimality(torch.zeros(1, 4), advantage_clip=0.0, std_floor_points=5.0)
    with pytest.raises(ValueError, match="deviation_of"):
        optimality(torch.zeros(1, 4), advantage_clip=1.0, std_floor_points=5.0, deviation_of="run")
