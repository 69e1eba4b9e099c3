"""`sprl train-rm`: flags reach the config, and what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.cli.main import main
from stateplay_rl.config.train_rm import TrainRmConfig
from stateplay_rl.errors import EXIT_CHECK, EXIT_OK, EXIT_USAGE
from stateplay_rl.stages.train_rm import run as stage
from stateplay_rl.stages.train_rm.run import TrainRmInputs, TrainRmSummary


def summary(out: Path, passed: bool) -> TrainRmSummary:
    measured = {"pairwise_agreement": 0.7, "pairwise_agreement_interval": [0.61, 0.79]}
    check = {"name": "pairwise_agreement", "value": 0.7, "rule": "at least", "threshold": 0.6, "passed": passed}
    return TrainRmSummary(
        out,
        {"best_epoch": 2, "student": {**measured, "mae_points": None}, "baselines": {"constant": measured}},
        {
            "passed": passed,
            "reading": "greedy",
            "checks": [check],
            "advice": "what to do next",
            "data": {"groups": {"train": 5, "validation": 1, "test": 2}},
        },
    )


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the stage, which trains nothing."""
    calls: list[Any] = []

    def run(config: TrainRmConfig, inputs: TrainRmInputs, out: Path) -> TrainRmSummary:
        calls.append((config, inputs, out))
        return summary(out, passed=config.seed == 1)

    monkeypatch.setattr(stage, "run", run)
    monkeypatch.delenv("RL_RUN_ROOT", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return calls


def test_flags_reach_the_config(called: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--scores s --conditions c --model m --requests r --device cpu --threads 2 --seed 1"
    command = ["train-rm", "groups", "--out", str(tmp_path / "out"), *flags.split(), "--set", "optimizer.epochs=3"]
    assert main([*command, "--resume"]) == EXIT_OK
    ((config, inputs, out),) = called
    assert (config.model, config.requests, config.seed) == ("m", Path("r"), 1)
    assert (config.compute.device, config.compute.threads, config.optimizer.epochs) == ("cpu", 2, 3)
    assert inputs == TrainRmInputs(Path("groups"), Path("s"), Path("c"), resume=True, overwrite=False)
    assert out == tmp_path / "out"
    printed = capsys.readouterr().out
    for text in ("5 train, 1 validation, 2 test", "0.700 [0.610, 0.790]", "not measured", "passed", "what to do next"):
        assert text in printed


def test_a_gate_that_is_not_passed_is_an_error_only_when_asked(called: list[Any], tmp_path: Path) -> None:
    command = ["train-rm", "groups", "--out", str(tmp_path / "out")]
    assert main(command) == EXIT_OK
    assert main([*command, "--strict"]) == EXIT_CHECK
    assert main([*command, "--strict", "--seed", "1"]) == EXIT_OK


@pytest.mark.parametrize("setting", ["optimizer.epochs=4", "lora.rank=0", "max_length=0", "gate.must_beat=[luck]"])
def test_settings_out_of_range_are_wrong_usage(called: list[Any], tmp_path: Path, setting: str) -> None:
    assert main(["train-rm", "groups", "--out", str(tmp_path / "out"), "--set", setting]) == EXIT_USAGE
    assert not called


def test_the_defaults_are_those_of_the_method() -> None:
    config = TrainRmConfig()
    assert (config.lora.rank, config.lora.alpha, config.lora.dropout) == (16, 32, 0.05)
    assert (config.optimizer.learning_rate, config.optimizer.groups_per_step, config.optimizer.epochs) == (1e-4, 28, 2)
    assert config.max_length == 65536
    assert (config.gate.pairwise_agreement, config.gate.parse_failures) == (0.60, 0.01)
