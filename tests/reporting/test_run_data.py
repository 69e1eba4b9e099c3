"""Reading log records."""

from __future__ import annotations

import pytest

from stateplay_rl.reporting.run_data import Evaluation, RunData, column, names_under, reward_band


def test_columns_walk_nested_fields_and_keep_gaps() -> None:
    records = [{"loss": {"nft": 1.5}}, {"loss": None}, {"loss": {"nft": float("nan")}}, {}]
    assert column(records, "loss", "nft") == (1.5, None, None, None)
    assert names_under(records, "loss") == ("nft",)


def test_reward_band_follows_the_law_of_total_variance() -> None:
    """std_batch 5, std_within 3: variance between groups 16, standard error 4 / sqrt(16) = 1."""
    record = {"reward_mean": 50.0, "std_batch": 5.0, "std_within": 3.0, "groups": 17, "groups_failed": 1}
    low, high = reward_band([record, {"reward_mean": None}])
    assert low[0] == pytest.approx(50 - 1.96)
    assert high[0] == pytest.approx(50 + 1.96)
    assert low[1] is None


def test_condition_means_leave_missing_samples_out() -> None:
    evaluation = Evaluation.from_record({"scores": {"a": [10.0, None], "b": [None, None]}})
    assert evaluation.condition_means() == {"a": 10.0, "b": None}
    assert evaluation.ci95 == (None, None)


def test_policy_falls_back_to_the_one_that_was_evaluated_most() -> None:
    evaluations = tuple(Evaluation.from_record({"policy": name}) for name in ("old", "old", "reference"))
    run = RunData({"heldout": {"policy": "live"}}, (), evaluations, (), (), {})
    assert run.policy == "old"
