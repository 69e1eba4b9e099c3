"""The whole stage on the tiny world: old follows live, resume, pauses, hand-made batches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.errors import EXIT_OUTSIDE, InputError, JudgeDownError, OutputError, OutsideError, UsageError
from stateplay_rl.stages.train_nft import booking, loop, opening, update
from stateplay_rl.stages.train_nft import run as stage
from stateplay_rl.stages.train_nft.heldout_curve import HeldoutCurve
from stateplay_rl.stages.train_nft.inputs import TrainInputs
from stateplay_rl.stages.train_nft.plan import make_plan
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import OutputDirectory, is_sealed, read_manifest
from tests.stages.train_nft.helpers import BrightJudge, write_tiny_conditions
from tests.stages.train_nft.lab import Lab, load_live, results
from tests.stages.train_nft.lab import settings as lab_settings

ALARM = {"batch": 0, "name": "motion", "value": 0.1, "threshold": 0.5, "severity": "alarm", "message": "planted"}


@pytest.fixture(scope="module")
def conditions(tmp_path_factory: pytest.TempPathFactory) -> ConditionStore:
    return write_tiny_conditions(tmp_path_factory.mktemp("run"), passing=6, heldout=2, without_clip=[1])


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, conditions: ConditionStore) -> Lab:
    return Lab(monkeypatch, conditions)


def test_a_run_from_start_to_seal(lab: Lab, tmp_path: Path) -> None:
    summary = lab.run(tmp_path / "run")
    assert (summary.batches, summary.candidates_seen, summary.already_done) == (2, 8, False)
    assert summary.ledger["trained"] == 4
    assert [batch for batch, _ in summary.heldout] == [0, 1, 2]
    (world,) = lab.worlds
    world.policies.verify_reference()
    metrics = LineLog(tmp_path / "run" / layout.METRICS).read()
    assert [line["batch"] for line in metrics] == [0, 1]
    assert [line["candidates_seen"] for line in LineLog(tmp_path / "run" / layout.HELDOUT).read()] == [0, 4, 8]
    # One condition has no clip: anchors are reported, over those that have one.
    assert metrics[0]["loss"]["fm_real"] is not None
    assert summary.policy_file.is_file()
    assert load_live(tmp_path / "run") == read_manifest(tmp_path / "run").extra["policies"]["live"]
    assert summary.optimizer_steps == sum(1 for _ in metrics) * 2
    again = lab.run(tmp_path / "run", resume=True)
    assert again.already_done
    assert again.batches == 2


def test_old_follows_live_with_eta_after_each_batch(lab: Lab, tmp_path: Path) -> None:
    """eta = 0.1 a step: after two steps old = 0.2 old + 0.8 live, computed on the checkpoints."""
    lab.run(tmp_path / "run", old_policy={"slope": 0.1, "maximum": 0.5}, checkpoint_every_batches=1)
    store = CheckpointStore(tmp_path / "run" / layout.CHECKPOINTS_FOLDER)
    before, after = (store.load(step).payload for step in (0, 1))
    eta = 0.1 * 2
    for name, old in before.old.items():
        expected = eta * old + (1 - eta) * after.live[name]
        assert float((after.old[name] - expected).abs().max()) < 1e-6
    metrics = LineLog(tmp_path / "run" / layout.METRICS).read()
    assert metrics[0]["eta"] == pytest.approx(eta)
    # What is logged is the distance before old follows.
    gap = sum(float((after.live[n].double() - v.double()).square().sum()) for n, v in before.old.items()) ** 0.5
    assert metrics[0]["distance_live_old"] == pytest.approx(gap, rel=1e-6)


class Stop(Exception):
    """Stands for a kill at a chosen place."""


PLACES = [
    (booking.Booking, "book_verdicts", 1),
    (loop.Trainer, "_follow_with_old", 0),
    (HeldoutCurve, "evaluate", 0),
    (HeldoutCurve, "evaluate", 2),
    (loop.Trainer, "_book_outcome", 1),
    (loop.Trainer, "_checkpoint", 1),
    (update.Updater, "_apply", 3),
    (OutputDirectory, "seal", 0),
    (OutputDirectory, "seal", 1),
]


@pytest.fixture(scope="module")
def whole(conditions: ConditionStore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        out = tmp_path_factory.mktemp("whole") / "run"
        Lab(monkeypatch, conditions).run(out)
        return results(out)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{p[1]}-{p[2]}")
def test_a_stopped_run_ends_as_if_it_had_not_been(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any], place: Any, after: bool
) -> None:
    owner, name, number = place
    real = getattr(owner, name)
    calls = iter(range(10**6))

    def stopping(*arguments: Any, **named: Any) -> Any:
        last = next(calls) == number
        if last and not after:
            raise Stop
        result = real(*arguments, **named)
        if last:
            raise Stop
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stopping)
        with pytest.raises(Stop):
            lab.run(tmp_path / "run")
    if not is_sealed(tmp_path / "run"):
        with pytest.raises(OutputError, match="unfinished"):
            lab.run(tmp_path / "run")
    lab.run(tmp_path / "run", resume=True)
    assert results(tmp_path / "run") == whole


def test_an_alarm_pauses_with_everything_saved(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any]
) -> None:
    """Checkpoints every 5 batches only: the pause writes one, so that the resume does not meet the alarm again."""
    changes = {"monitors": {"pause_on_alarm": True}, "checkpoint_every_batches": 5}
    monkeypatch.setattr(
        loop.monitors, "alarms_of", lambda line, first, config, best: [ALARM] if line["batch"] == 0 else []
    )
    with pytest.raises(OutsideError, match=r"paused after batch 0: motion: planted") as caught:
        lab.run(tmp_path / "run", **changes)
    assert caught.value.exit_code == EXIT_OUTSIDE
    summary = lab.run(tmp_path / "run", resume=True, **changes)
    assert (summary.batches, summary.alarms) == (2, 1)
    assert results(tmp_path / "run")["live"] == whole["live"]


def test_failed_groups_are_booked_and_never_trained(lab: Lab, tmp_path: Path) -> None:
    lab.judge = BrightJudge(fails=["c0", "c1"])
    summary = lab.run(tmp_path / "run", heldout={"conditions": 0})
    assert (summary.ledger["failed"], summary.ledger["trained"]) == (2, 2)
    first, second = LineLog(tmp_path / "run" / layout.METRICS).read()
    assert (first["groups_failed"], first["optimizer_steps"], first["reward_mean"]) == (2, 0, None)
    assert second["optimizer_steps"] == 2
    with Ledger.open(tmp_path / "run" / layout.LEDGER, read_only=True) as ledger:
        assert ledger.entry("c0").reason == "no_json: planted"


def test_a_held_out_evaluation_without_verdicts_is_an_alarm_and_not_an_end(lab: Lab, tmp_path: Path) -> None:
    lab.judge = BrightJudge(fails=["c6", "c7"])
    summary = lab.run(tmp_path / "run")
    assert (summary.batches, summary.heldout) == (2, ())
    alarms = [alarm["name"] for alarm in LineLog(tmp_path / "run" / layout.ALARMS).read()]
    assert alarms.count("heldout_failed") == 2


def test_guard_books_what_it_leaves_out(lab: Lab, tmp_path: Path) -> None:
    loss = {"gating": "guard", "guard_spread_points": 0.0, "guard_best_points": 100.0}
    summary = lab.run(tmp_path / "run", loss=loss, heldout={"conditions": 0})
    assert summary.ledger["gated"] == 4
    assert summary.optimizer_steps == 0


def test_seeds_decide(lab: Lab, tmp_path: Path, whole: dict[str, Any]) -> None:
    lab.run(tmp_path / "same")
    lab.run(tmp_path / "other", seed=1)
    assert results(tmp_path / "same") == whole
    assert results(tmp_path / "other")["live"] != whole["live"]


def test_a_resume_with_another_config_or_judge_is_refused(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_follow_with_old", stop)
        with pytest.raises(Stop):
            lab.run(tmp_path / "run", heldout={"conditions": 0})
    with pytest.raises(UsageError, match="seed: was 0, now 4"):
        lab.run(tmp_path / "run", resume=True, seed=4, heldout={"conditions": 0})
    lab.judge = BrightJudge()
    lab.judge.protocol_sha256 = "0" * 64
    with pytest.raises(UsageError, match="two judges are never mixed"):
        lab.run(tmp_path / "run", resume=True, heldout={"conditions": 0})


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"stage_conditions": 7}, "6 conditions of pool 'pass'"),
        ({"heldout": {"conditions": 3}}, "2 held-out conditions, 3 are asked for"),
    ],
)
def test_what_cannot_run_leaves_nothing_behind(lab: Lab, tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        lab.run(tmp_path / "run", **changes)
    assert list(tmp_path.iterdir()) == []


def test_metrics_hold_no_nan(lab: Lab, tmp_path: Path) -> None:
    lab.run(tmp_path / "run", tracker="tensorboard")
    for name in (layout.METRICS, layout.HELDOUT, layout.TIMINGS):
        for text in (tmp_path / "run" / name).read_text().splitlines():
            json.loads(text, parse_constant=pytest.fail)
    read_manifest(tmp_path / "run", schema="run", verify_files=True)


def test_a_tracker_gets_the_batches_and_the_evaluations(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[int, str]] = []

    class Fake:
        def log(self, values: Mapping[str, Any], step: int) -> None:
            logged.append((step, "heldout" if "heldout" in values else "batch"))
            assert values.get("heldout", values)["reward_mean"] is not None

        def finish(self) -> None:
            logged.append((-1, "finished"))

    monkeypatch.setattr(opening, "make_tracker", lambda *_: Fake())
    lab.run(tmp_path / "run")
    evaluations = [line["batch"] for line in LineLog(tmp_path / "run" / layout.HELDOUT).read()]
    batches = [line["batch"] for line in LineLog(tmp_path / "run" / layout.METRICS).read()]
    assert [step for step, what in logged if what == "heldout"] == evaluations
    assert [step for step, what in logged if what == "batch"] == batches
    assert logged[-1] == (-1, "finished")
    steps = [step for step, _ in logged[:-1]]
    assert steps == sorted(steps), "some trackers take no step back"


def test_only_the_last_checkpoints_and_the_best_stay(lab: Lab, tmp_path: Path) -> None:
    lab.run(tmp_path / "run", stage_conditions=6, conditions_per_batch=1, keep_checkpoints=2)
    store = CheckpointStore(tmp_path / "run" / layout.CHECKPOINTS_FOLDER)
    rewards = [line["reward_mean"] for line in LineLog(tmp_path / "run" / layout.HELDOUT).read()]
    best = store.best()
    assert best is not None
    assert rewards[best] == max(rewards)
    assert set(store.steps()) == {5, 6, best}


def test_the_best_is_kept_between_checkpoints_too(lab: Lab, tmp_path: Path) -> None:
    """Checkpoints every 50 batches, an evaluation every batch: wherever the best reward was, its weights are there."""
    lab.run(tmp_path / "run", stage_conditions=6, conditions_per_batch=1, checkpoint_every_batches=50)
    store = CheckpointStore(tmp_path / "run" / layout.CHECKPOINTS_FOLDER)
    rewards = [line["reward_mean"] for line in LineLog(tmp_path / "run" / layout.HELDOUT).read()]
    best = store.best()
    assert best is not None
    assert rewards[best] == max(rewards)
    assert best in store.steps()


def test_a_judge_that_comes_back_after_a_stop(lab: Lab, tmp_path: Path, whole: dict[str, Any]) -> None:
    """Down in the second batch: exit 5, the checkpoint names the batch in flight, verdicts are kept, same result."""
    settings = {"judging": {"retry_seconds": 0.01, "outage_hours": 0.0}}
    asked = lab.judge.score_group

    def down(group: Any) -> Any:
        if group.record.condition_id == "c3":
            raise JudgeDownError("connection refused", "")
        return asked(group)

    lab.judge.score_group = down  # type: ignore[method-assign]
    with pytest.raises(OutsideError, match="is down") as caught:
        lab.run(tmp_path / "run", **settings)
    assert caught.value.exit_code == EXIT_OUTSIDE
    run = tmp_path / "run"
    (flying,) = (run / "segments" / "000-a" / layout.IN_FLIGHT_FOLDER).iterdir()
    state = CheckpointStore(run / layout.CHECKPOINTS_FOLDER).load().payload.state
    assert state["ledger"]["in_flight"]["batch"] == 1
    states = {c["condition_id"]: c["state"] for c in state["ledger"]["in_flight"]["conditions"]}
    assert states == {"c2": "scored", "c3": "rolled"}
    assert json.loads(flying.read_text())["group_id"] == flying.name.partition(".")[0]
    inputs = TrainInputs(lab.conditions.root, resume=True)
    assert dict(make_plan(lab_settings(**settings), inputs, run))["done"].startswith("1 of 2 batches")
    lab.judge.score_group = asked  # type: ignore[method-assign]
    lab.judge.asked.clear()
    lab.run(run, resume=True, **settings)
    assert lab.judge.asked.count("c2") == 0
    assert results(run) == whole
    assert not (run / "segments" / "000-a" / layout.IN_FLIGHT_FOLDER).exists()


def test_the_average_is_evaluated_and_exported(lab: Lab, tmp_path: Path, whole: dict[str, Any]) -> None:
    """average <- 0.5 average + 0.5 live after each batch, by hand from the checkpoints; nothing else changes."""
    changes = {"evaluation_average": {"decay": 0.5}}
    lab.run(tmp_path / "run", **changes, heldout={"conditions": 2, "samples": 1, "policy": "average"})
    store = CheckpointStore(tmp_path / "run" / layout.CHECKPOINTS_FOLDER)
    payloads = [store.load(step).payload for step in (0, 1, 2)]
    for name, start in payloads[0].live.items():
        expected = start.double()
        for payload in payloads[1:]:
            expected = 0.5 * expected + 0.5 * payload.live[name].double()
        assert float((payloads[2].average[name].double() - expected).abs().max()) < 1e-6
    exported = read_manifest(tmp_path / "run").extra["policies"]
    assert set(exported) == {"live", "old", "average"}
    assert len(set(exported.values())) == 3
    assert exported["live"] == whole["live"]
    lines = LineLog(tmp_path / "run" / layout.HELDOUT).read()
    assert {line["policy"] for line in lines} == {"average"}
    assert lines[-1]["policy_sha256"] == exported["average"]


def test_a_damaged_checkpoint_stops_and_offers_the_one_before(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(stage, "finish", stop)
        with pytest.raises(Stop):
            lab.run(tmp_path / "run")
    folder = tmp_path / "run" / layout.CHECKPOINTS_FOLDER
    (folder / "step-2" / layout.LIVE_WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"step-2/live\.safetensors") as caught:
        lab.run(tmp_path / "run", resume=True)
    assert "step 1" in caught.value.hint
    shutil.rmtree(folder / "step-2")
    (folder / layout.LATEST).write_text("step-1\n")
    assert lab.run(tmp_path / "run", resume=True).batches == 2
