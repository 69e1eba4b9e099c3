"""One, two or three processes: the same weights and the same ledger, with batches that do not divide."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stateplay_rl.checks.run_results import consumed, largest_weight_difference
from stateplay_rl.distributed import choose_strategy
from stateplay_rl.errors import UsageError
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.manifest import is_sealed, read_manifest
from tests.e2e.command_line import Arena, environment, finish, kill_family, run_elsewhere, run_results, start

pytestmark = pytest.mark.slow
FIVE_BATCHES = {
    "stage_conditions": 9,
    "heldout.conditions": 0,
    "sampling.candidates": 2,
    "optimizer.samples_per_step": 3,
}
LARGEST_DIFFERENCE = 1e-6
LEARNING_RATE = 1e-3


@pytest.fixture(scope="module")
def alone(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five batches of 2, 2, 2, 2 and 1 conditions on one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    result = run_elsewhere(*arena.train(out, **FIVE_BATCHES))
    assert result.code == 0, result.text
    return out


def assert_same_run(one: Path, other: Path) -> None:
    for policy in ("live", "old"):
        assert largest_weight_difference(one, other, policy) <= LARGEST_DIFFERENCE
    assert consumed(one) == consumed(other)
    first, second = run_results(one), run_results(other)
    assert first["ledger"] == second["ledger"]
    assert first["groups"].keys() == second["groups"].keys()
    metrics = [LineLog(run / layout.METRICS).read() for run in (one, other)]
    assert [line["groups"] for line in metrics[1]] == [2, 2, 2, 2, 1]
    assert [line["optimizer_steps"] for line in metrics[0]] == [line["optimizer_steps"] for line in metrics[1]]


@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_processes_trains_the_same_weights(arena: Arena, tmp_path: Path, alone: Path, count: int) -> None:
    result = run_elsewhere(*arena.train(tmp_path / "run", **FIVE_BATCHES), processes=count)
    assert result.code == 0, result.text
    assert result.text.count("optimizer steps") == 1
    assert read_manifest(tmp_path / "run", verify_files=True).world_size == count
    assert_same_run(alone, tmp_path / "run")


def test_killed_on_two_processes_and_resumed_on_three_and_one(arena: Arena, tmp_path: Path, alone: Path) -> None:
    """All ranks are shot in the middle of a batch; other numbers of ranks go on."""
    out = tmp_path / "run"
    command = arena.train(out, **FIVE_BATCHES)
    for number, (processes, checkpoint) in enumerate(((2, 1), (3, 3))):
        running = start(*command, *(["--resume"] if number else []), processes=processes)
        while running.poll() is None and not (out / layout.CHECKPOINTS_FOLDER / f"step-{checkpoint}").exists():
            time.sleep(0.01)
        time.sleep(0.05)
        kill_family(running)
        finish(running)
        assert not is_sealed(out)
    result = run_elsewhere(*command, "--resume")
    assert result.code == 0, result.text
    assert_same_run(alone, out)


def test_sharded_weights_train_the_same(arena: Arena, tmp_path: Path, alone: Path) -> None:
    """FSDP2 on the frozen blocks; odd shares, and a resume that finds some of its groups on disk already."""
    out = tmp_path / "run"
    sharded = {**FIVE_BATCHES, "parallel.strategy": "sharded"}
    running = start(*arena.train(out, **sharded), processes=2)
    while running.poll() is None and not list(out.glob(f"segments/*/groups/*/{layout.GROUP}")):
        time.sleep(0.01)
    kill_family(running)
    finish(running)
    result = run_elsewhere(*arena.train(out, "--resume", **sharded), processes=2)
    assert result.code == 0, result.text
    assert consumed(alone) == consumed(out)
    one, two = (LineLog(run / layout.METRICS).read() for run in (alone, out))
    assert [line["optimizer_steps"] for line in one] == [line["optimizer_steps"] for line in two]
    # The last bits of a product depend on where a gathered weight lies; AdamW's first steps make more of them.
    assert two[0]["loss"]["total"] == pytest.approx(one[0]["loss"]["total"], rel=1e-4)
    assert two[0]["reward_mean"] == pytest.approx(one[0]["reward_mean"], abs=1.0)
    steps = one[-1]["optimizer_steps"]
    assert largest_weight_difference(alone, out) < 2 * steps * LEARNING_RATE


def test_two_processes_roll_out_the_same_groups(arena: Arena, tmp_path: Path) -> None:
    for count in (1, 2):
        result = run_elsewhere(*arena.rollout(tmp_path / str(count), "--limit", 3), processes=count)
        assert result.code == 0, result.text
        assert result.text.count("3 groups, 9 candidates") == 1
    files = [read_manifest(tmp_path / name, schema="groups", verify_files=True).files for name in ("1", "2")]
    one, two = ({name: ref.sha256 for name, ref in found.items()} for found in files)
    one.pop(layout.CONFIG), two.pop(layout.CONFIG)
    assert one == two


def test_an_error_reaches_every_process(arena: Arena, tmp_path: Path) -> None:
    """No rank waits for ever for one that has stopped."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    result = run_elsewhere(*arena.train(tmp_path / "out"), processes=2)
    assert result.code != 0
    assert "was not written by sprl" in result.text
    assert (tmp_path / "out" / "mine.txt").read_text() == "precious"


def test_accelerate_launch_starts_it(arena: Arena, tmp_path: Path) -> None:
    """The launcher that the documentation names, with two processes; on a CPU it has to be told so."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--main_process_port", "0", "-m", "stateplay_rl"]
    command += arena.train(tmp_path / "run", stage_conditions=2, heldout__conditions=0)
    env = {**environment(), "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_manifest(tmp_path / "run", verify_files=True).world_size == 2


def test_engines_that_would_be_ignored_are_refused(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accelerate's config file reaches a process as environment variables."""
    for variables, what in (
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, "FSDP version 1"),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(UsageError, match=what):
                choose_strategy("replicated")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    assert choose_strategy("replicated") == "sharded"
