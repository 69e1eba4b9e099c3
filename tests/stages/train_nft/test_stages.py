"""Stage A, its extensions, stage C and its audits: one pass over the ledger, one chain of segments."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.errors import CheckError, InputError, OutputError, OutsideError, UsageError
from stateplay_rl.stages.train_nft import loop, update
from stateplay_rl.stages.train_nft import run as stage
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import OutputDirectory, is_sealed, read_manifest
from stateplay_rl.stores.segments import list_segments
from tests.stages.train_nft.gates import write_gate
from tests.stages.train_nft.helpers import write_tiny_conditions
from tests.stages.train_nft.lab import Lab, results, settings

PASSING = 11
NO_HELDOUT = {"heldout": {"conditions": 0}}
STAGE_C = {"stage": "c", "judge": {"name": "student", "reward_model": "named-by-the-run"}, **NO_HELDOUT}
PLUGGED_C = {**STAGE_C, "judge": {"name": "plug_in:Student"}}
"""A judge that brings no reward_model/ of its own."""


@pytest.fixture(scope="module")
def conditions(tmp_path_factory: pytest.TempPathFactory) -> ConditionStore:
    return write_tiny_conditions(tmp_path_factory.mktemp("stages"), passing=PASSING, heldout=2)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, conditions: ConditionStore) -> Lab:
    return Lab(monkeypatch, conditions)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return write_gate(tmp_path / "reward_model")


def batches_of(run: Path) -> list[int]:
    with Ledger.open(run / layout.LEDGER, read_only=True) as ledger:
        return [len(ledger.members(batch)) for batch in range(ledger.batches())]


def names(run: Path) -> list[str]:
    return [segment.path.name for segment in list_segments(run)]


def test_a_extension_and_c_make_one_pass(lab: Lab, tmp_path: Path, gate: Path) -> None:
    """4 + 3 + 4 conditions in batches of 2: each segment's last batch may be smaller, no condition comes twice."""
    run = tmp_path / "run"
    first = lab.run(run, **NO_HELDOUT)
    assert (first.segment, first.conditions, first.scored, first.left) == ("000-a", 4, 4, 7)
    extended = lab.run(run, extend=3, **NO_HELDOUT)
    assert (extended.segment, extended.batches, extended.left) == ("001-a+3", 4, 4)
    last = lab.run(run, reward_model=str(gate), **STAGE_C)
    assert (last.segment, last.batches, last.left, last.smoke) == ("002-c", 6, 0, False)
    assert names(run) == ["000-a", "001-a+3", "002-c"]
    assert batches_of(run) == [2, 2, 2, 1, 2, 2]
    with Ledger.open(run / layout.LEDGER, read_only=True) as ledger:
        assert [entry.condition_id for entry in ledger.entries()] == [f"c{i}" for i in range(PASSING)]
        assert ledger.counts()["trained"] == PASSING
    metrics = LineLog(run / layout.METRICS).read()
    assert [line["batch"] for line in metrics] == [0, 1, 2, 3, 4, 5]
    assert [line["stage"] for line in metrics] == ["a", "a", "a", "a", "c", "c"]
    steps = [line["optimizer_steps"] for line in metrics]
    assert steps == sorted(set(steps))
    assert [line["candidates_seen"] for line in metrics] == [4, 8, 12, 14, 18, 22]
    # Three seals, three manifests: the earlier ones are kept.
    assert {path.name for path in run.glob("manifest*.json")} == {
        "manifest.json",
        "manifest-000.json",
        "manifest-001.json",
    }
    read_manifest(run, schema="run", verify_files=True)
    asked = {line["judge_id"] for line in LineLog(run / "segments" / "002-c" / layout.VERDICTS).read()}
    assert asked == {"student"}


def test_an_extension_goes_on_where_one_long_stage_would(lab: Lab, tmp_path: Path) -> None:
    """4 + 4 conditions train the same weights as 8 at once: moments, counters, old and ledger went on."""
    lab.run(tmp_path / "two", **NO_HELDOUT)
    lab.run(tmp_path / "two", extend=4, **NO_HELDOUT)
    lab.run(tmp_path / "one", stage_conditions=8, **NO_HELDOUT)
    two, one = results(tmp_path / "two"), results(tmp_path / "one")
    assert two["live"] == one["live"]
    assert two["policies"] >= one["policies"]
    assert two["ledger"] == one["ledger"]
    assert two[layout.METRICS] == one[layout.METRICS]


def test_c_continues_live_old_and_moments(
    lab: Lab, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    lab.run(run, **NO_HELDOUT)
    store = CheckpointStore(run / layout.CHECKPOINTS_FOLDER)
    before = store.load()
    seen: list[dict[str, Any]] = []
    real = loop.Trainer.train

    def train(trainer: loop.Trainer) -> None:
        policies = trainer.world.policies
        moments = [dict(trainer.updater.optimizer.state[p]) for p in trainer.updater.parameters]
        seen.append(
            {
                "live": policies.state("live"),
                "old": policies.state("old"),
                "steps": trainer.updater.optimizer_steps,
                "moments": len([m for m in moments if float(m["exp_avg_sq"].abs().sum()) > 0]),
            }
        )
        real(trainer)

    monkeypatch.setattr(loop.Trainer, "train", train)
    lab.run(run, reward_model=str(gate), **STAGE_C)
    (start,) = seen
    for policy in ("live", "old"):
        expected = getattr(before.payload, policy)
        assert all(start[policy][name].equal(value) for name, value in expected.items())
    assert start["steps"] == before.payload.state["optimizer_steps"] > 0
    assert start["moments"] > 0


class Stop(Exception):
    """Stands for a kill at a chosen place."""


PLACES = [
    (loop.Trainer, "train", 0, False),
    (loop.Trainer, "_follow_with_old", 1, True),
    (update.Updater, "_apply", 1, True),
    (OutputDirectory, "seal", 0, True),
    (OutputDirectory, "seal", 1, True),
    (stage, "build_trainer", 0, False),
]


@pytest.fixture(scope="module")
def finished(conditions: ConditionStore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run after stage A, and what an undisturbed extension and stage C make of it."""
    root = tmp_path_factory.mktemp("finished")
    gate = write_gate(root / "reward_model")
    with pytest.MonkeyPatch.context() as monkeypatch:
        lab = Lab(monkeypatch, conditions)
        lab.run(root / "a", **NO_HELDOUT)
        for name in ("extend", "c"):
            shutil.copytree(root / "a", root / name)
            lab.run(root / name, **more(name, gate))
    return {"gate": gate, **{name: root / name for name in ("a", "extend", "c")}}


def more(which: str, gate: Path) -> dict[str, Any]:
    return {"extend": 4, **NO_HELDOUT} if which == "extend" else {"reward_model": str(gate), **STAGE_C}


@pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{p[1]}-{p[2]}")
@pytest.mark.parametrize("which", ["extend", "c"])
def test_a_stopped_segment_ends_as_if_it_had_not_been(
    lab: Lab, tmp_path: Path, finished: dict[str, Path], monkeypatch: pytest.MonkeyPatch, which: str, place: Any
) -> None:
    owner, name, number, after = place
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

    run = tmp_path / "run"
    shutil.copytree(finished["a"], run)
    asked = more(which, finished["gate"])
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stopping)
        with pytest.raises(Stop):
            lab.run(run, **asked)
    if not is_sealed(run):
        with pytest.raises(OutputError, match="unfinished"):
            lab.run(run, **asked)
    lab.run(run, resume=True, **asked)
    assert results(run) == results(finished[which])
    assert names(run) == names(finished[which])


def test_equal_extensions_are_told_apart(
    lab: Lab, tmp_path: Path, finished: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before its folder exists, the second +2 must not pass for the first."""
    run = tmp_path / "run"
    shutil.copytree(finished["a"], run)
    lab.run(run, extend=2, **NO_HELDOUT)

    def stop(*arguments: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(stage, "build_trainer", stop)
        with pytest.raises(Stop):
            lab.run(run, extend=2, **NO_HELDOUT)
    assert not is_sealed(run)
    assert lab.run(run, extend=2, resume=True, **NO_HELDOUT).segment == "002-a+2"
    assert batches_of(run) == [2, 2, 2, 2]
    # Asked for again with --resume it is done; without, it is another extension.
    again = lab.run(run, extend=2, resume=True, **NO_HELDOUT)
    assert (again.already_done, again.segment) == (True, "002-a+2")
    assert lab.run(run, extend=2, **NO_HELDOUT).segment == "003-a+2"


def test_a_script_can_be_run_again_from_its_top(
    lab: Lab, tmp_path: Path, gate: Path, finished: dict[str, Path]
) -> None:
    """With --resume every finished line answers at once, also while a later stage is unfinished."""
    run = tmp_path / "run"
    shutil.copytree(finished["a"], run)
    lab.student.down_for = 10**6
    down = {"judging": {"retry_seconds": 0.01, "outage_hours": 0.0}}
    with pytest.raises(OutsideError, match="is down"):
        lab.run(run, reward_model=str(gate), **STAGE_C, **down)
    first = lab.run(run, resume=True, **NO_HELDOUT)
    assert (first.already_done, first.segment) == (True, "000-a")
    with pytest.raises(OutputError, match="is still open"):
        lab.run(run, resume=True, extend=2, **NO_HELDOUT)
    lab.student.down_for = 0
    assert lab.run(run, resume=True, reward_model=str(gate), **STAGE_C).left == 0


def test_the_limit_and_the_order_of_stages(lab: Lab, tmp_path: Path, gate: Path, finished: dict[str, Path]) -> None:
    run = tmp_path / "run"
    with pytest.raises(InputError, match="no finished stage A to extend"):
        lab.run(run, extend=2, **NO_HELDOUT)
    with pytest.raises(InputError, match="holds no finished stage A"):
        lab.run(run, reward_model=str(gate), **STAGE_C)
    assert not run.exists()
    shutil.copytree(finished["a"], run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(InputError, match=r"pass its limit of 5"):
        lab.run(run, extend=2, stage_a_limit=5, **NO_HELDOUT)
    with pytest.raises(InputError, match="7 conditions of pool 'pass' are left, stage A wants 8") as caught:
        lab.run(run, extend=8, **NO_HELDOUT)
    assert "--extend 7" in caught.value.hint
    with pytest.raises(OutputError, match="is finished"):
        lab.run(run, **NO_HELDOUT)
    with pytest.raises(UsageError, match="seed: was 0, now 3"):
        lab.run(run, extend=2, seed=3, **NO_HELDOUT)
    with pytest.raises(UsageError, match="seed: was 0, now 3"):
        lab.run(run, seed=3, reward_model=str(gate), **STAGE_C)
    other = settings().sampling.model_copy(update={"solver": "dpm2m"})
    with pytest.raises(UsageError, match="solver: was 'euler', now 'dpm2m'"):
        lab.run(run, sampling=other, reward_model=str(gate), **STAGE_C)
    with pytest.raises(InputError, match="stage C wants 8"):
        lab.run(run, stage_c_conditions=8, reward_model=str(gate), **STAGE_C)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    lab.run(run, stage_c_conditions=3, reward_model=str(gate), **STAGE_C)
    with pytest.raises(InputError, match="stage A is closed"):
        lab.run(run, extend=2, **{**NO_HELDOUT, "stage_a_limit": 4000})


def test_c_refuses_without_the_gate_of_its_very_judge(lab: Lab, tmp_path: Path, finished: dict[str, Path]) -> None:
    run = finished["a"]
    for name, facts, what in (
        ("failed", {"passed": False}, "did not pass"),
        ("other-adapter", {"adapter_sha256": "0" * 64}, "is the gate of adapter 000000000000"),
        ("other-judge", {"judge_protocol_sha256": "1" * 64}, "was passed by judge protocol 111111111111"),
        ("nameless", {"judge_protocol_sha256": None}, "was passed by judge protocol None"),
        ("no-verdict", {"passed": None}, "lacks or misstates field 'passed'"),
        ("text", {"passed": "yes"}, "not true or false"),
    ):
        folder = write_gate(tmp_path / name, **facts)
        with pytest.raises(CheckError, match=what) as caught:
            lab.run(run, reward_model=str(folder), **STAGE_C)
        assert caught.value.exit_code == 4
    with pytest.raises(CheckError, match="needs the gate"):
        lab.run(run, **PLUGGED_C)
    swapped = write_gate(tmp_path / "swapped")
    (swapped / layout.ADAPTER_FOLDER / "adapter_model.safetensors").write_bytes(b"ADAPTER")
    with pytest.raises(CheckError, match="does not match its sha256"):
        lab.run(run, reward_model=str(swapped), **STAGE_C)
    assert names(run) == ["000-a"]


def test_a_forced_stage_is_short_and_marked(lab: Lab, tmp_path: Path, gate: Path) -> None:
    run = tmp_path / "run"
    lab.run(run, conditions_per_batch=1, stage_conditions=1, **NO_HELDOUT)
    forced = {"force_without_gate": True, "conditions_per_batch": 1, **PLUGGED_C}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stateplay_rl.stages.train_nft.segments.SMOKE_BATCHES", 3)
        smoke = lab.run(run, **forced)
    assert (smoke.conditions, smoke.smoke, smoke.left) == (3, True, 7)
    assert read_manifest(run).extra["smoke"] is True
    # With the gate the stage goes on; the run keeps its mark.
    rest = lab.run(run, reward_model=str(gate), conditions_per_batch=2, **PLUGGED_C)
    assert (rest.segment, rest.conditions, rest.left) == ("002-c", 7, 0)
    assert read_manifest(run).extra["smoke"] is True


def audits(**changes: Any) -> dict[str, Any]:
    return {"audits": {"judge": {"name": "referee"}, "first_conditions": 3, "every_batches": 2, "groups": 2, **changes}}


def test_audits_are_ordinary_conditions_and_a_student_that_disagrees_pauses(
    lab: Lab, tmp_path: Path, gate: Path
) -> None:
    """3 first conditions in two batches, then one batch in every two; the student's scores train."""
    run = tmp_path / "run"
    lab.run(run, stage_conditions=3, **NO_HELDOUT)
    lab.student.factor = lab.judge.factor
    lab.run(run, reward_model=str(gate), **STAGE_C, **audits())
    segment = run / "segments" / "001-c"
    audited = [line["group_id"] for line in LineLog(segment / layout.AUDITS).read()]
    with Ledger.open(run / layout.LEDGER, read_only=True) as ledger:
        members = [[entry.group_id in audited for entry in ledger.members(batch)] for batch in range(2, 6)]
        assert ledger.counts()["trained"] == PASSING
    assert members == [[True, True], [True, False], [True, True], [False, False]]
    found = [line["audit"] for line in LineLog(run / layout.METRICS).read()[2:]]
    assert [audit and (audit["groups"], audit["pairwise"]) for audit in found] == [None, (3, 1.0), (2, 1.0), None]

    other = tmp_path / "other"
    lab.run(other, stage_conditions=3, **NO_HELDOUT)
    lab.student.factor = -lab.judge.factor
    with pytest.raises(OutsideError, match=r"paused after batch 3: audit_agreement: .*the gate asked for 0\.60"):
        lab.run(other, reward_model=str(gate), **STAGE_C, **audits())
    alarms = LineLog(other / layout.ALARMS).read()
    assert [a["severity"] for a in alarms if a["name"] == "audit_agreement"] == ["alarm"]
    # Somebody looked at it and goes on: the same audit does not stop it again.
    with pytest.raises(OutsideError, match="paused after batch 4"):
        lab.run(other, resume=True, reward_model=str(gate), **STAGE_C, **audits())
    assert lab.run(other, resume=True, reward_model=str(gate), **STAGE_C, **audits()).left == 0


def test_held_out_rewards_of_a_and_c_are_apart(lab: Lab, tmp_path: Path, gate: Path) -> None:
    run = tmp_path / "run"
    lab.run(run, stage_conditions=2)
    summary = lab.run(run, reward_model=str(gate), stage_c_conditions=2, **{**STAGE_C, "heldout": settings_heldout()})
    # What is shown at the end compares rewards of one judge.
    assert [batch for batch, _ in summary.heldout] == [1, 2]
    lines = LineLog(run / layout.HELDOUT).read()
    assert [(line["batch"], line["stage"], line["judge_id"]) for line in lines] == [
        (0, "a", "bright"),
        (1, "a", "bright"),
        (1, "c", "student"),
        (2, "c", "student"),
    ]
    state = CheckpointStore(run / layout.CHECKPOINTS_FOLDER).load().payload.state
    assert [batch for batch, _ in state["rewards"]] == [1, 2]


def settings_heldout() -> dict[str, Any]:
    return {"conditions": 2, "samples": 1, "every_batches": 1}
