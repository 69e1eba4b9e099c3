"""The headline claims no more than the intervals allow."""

from __future__ import annotations

import pytest

from stateplay_rl.reporting.run_data import Evaluation, RunData
from stateplay_rl.reporting.verdict import gather_alarms, run_headline

NAMES = [f"h{index:02d}" for index in range(40)]


def evaluation(batch: int, shift: float, noise: float = 0.0, policy: str = "live") -> Evaluation:
    """40 conditions, two samples each; `noise` alternates in sign over the conditions."""
    scores = {
        name: [40.0 + shift + noise * (-1) ** index + index % 3, 42.0 + shift + noise * (-1) ** index]
        for index, name in enumerate(NAMES)
    }
    values = [value for row in scores.values() for value in row]
    centre = sum(values) / len(values)
    return Evaluation.from_record(
        {"batch": batch, "policy": policy, "candidates_seen": 64 * batch, "conditions": 40, "samples": 2,
         "reward_mean": centre, "ci95": [centre - 2, centre + 2], "scores": scores}
    )  # fmt: skip


def run_of(*evaluations: Evaluation, control: bool = False, rewards: tuple[float, ...] = ()) -> RunData:
    metrics = tuple({"batch": i, "reward_mean": r, "candidates_seen": 64 * (i + 1)} for i, r in enumerate(rewards))
    config = {"control": "shuffled_rewards" if control else "none", "heldout": {"policy": "live"}}
    return RunData(config, metrics, evaluations, (), (), {})


def test_a_rise_above_the_control_is_good() -> None:
    headline = run_headline(
        run_of(evaluation(0, 0), evaluation(10, 26, 3)),
        True,
        run_of(evaluation(0, 0), evaluation(10, 1, 3), control=True),
    )
    assert headline.tone == "good"
    assert headline.verdict == "Held-out reward rose, above the control"
    assert "+26.0 [" in headline.sentences[0]
    assert "over 40 held-out conditions" in headline.sentences[0]
    assert "The control with shuffled rewards moved +1.0 [" in headline.sentences[1]
    assert "Difference of the two gains on the same 40 conditions: +25.0" in headline.sentences[1]


def test_a_rise_that_the_control_shares_is_not_claimed() -> None:
    headline = run_headline(
        run_of(evaluation(0, 0), evaluation(10, 8, 9)),
        True,
        run_of(evaluation(0, 0), evaluation(10, 8, 9), control=True),
    )
    assert headline.tone == "caution"
    assert "not shown to exceed the control" in headline.verdict
    assert "may be drift" in headline.sentences[1]


def test_a_rise_without_a_control_asks_for_one() -> None:
    headline = run_headline(run_of(evaluation(0, 0), evaluation(10, 26, 3)), True)
    assert headline.verdict == "Held-out reward rose; no control"
    assert any("shuffled rewards" in sentence for sentence in headline.sentences)


def test_an_interval_that_holds_zero_is_no_change() -> None:
    headline = run_headline(run_of(evaluation(0, 0), evaluation(10, 0.5, 12)), True)
    assert headline.verdict == "No measurable change"
    assert "includes 0" in headline.sentences[0]
    assert "rose" not in headline.sentences[0]


def test_training_reward_alone_is_called_memorising() -> None:
    headline = run_headline(run_of(evaluation(0, 0), evaluation(10, 0, 12), rewards=(50.0, 70.0)), True)
    assert any("memorising" in sentence for sentence in headline.sentences)


def test_a_fall_is_bad() -> None:
    headline = run_headline(run_of(evaluation(0, 0), evaluation(10, -10, 2)), True)
    assert (headline.verdict, headline.tone) == ("Held-out reward fell", "bad")


def test_a_control_is_never_praised() -> None:
    headline = run_headline(run_of(evaluation(0, 0), evaluation(10, 26, 3), control=True), True)
    assert headline.tone == "neutral"
    assert "drift" in headline.verdict


@pytest.mark.parametrize("evaluations", [(), (evaluation(0, 0),)])
def test_too_few_evaluations(evaluations: tuple[Evaluation, ...]) -> None:
    headline = run_headline(run_of(*evaluations), False)
    assert headline.tone == "neutral"
    assert any("unfinished" in sentence for sentence in headline.sentences)


def test_reference_stands_for_the_start_when_live_was_evaluated_once() -> None:
    gain = run_of(evaluation(0, 0, policy="reference"), evaluation(10, 26, 3)).gain()
    assert gain is not None
    assert gain.before.policy == "reference"


def test_alarms_are_gathered_and_severe_ones_come_first() -> None:
    records = tuple(
        {
            "batch": batch,
            "name": name,
            "value": 1.0 + batch,
            "threshold": 1.05,
            "message": "m",
            "severity": severity,
        }
        for batch, name, severity in (
            (0, "a_warning", "warning"),
            (1, "z_alarm", "alarm"),
            (4, "a_warning", "warning"),
        )
    )
    alarms = gather_alarms(records)
    assert [(alarm.severity, alarm.name) for alarm in alarms] == [
        ("alarm", "z_alarm"),
        ("warning", "a_warning"),
    ]
    assert "2 times, batches 0 to 4" in alarms[1].detail
