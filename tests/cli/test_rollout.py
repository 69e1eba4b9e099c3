"""`sprl rollout`: flags reach the config, and what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.cli.main import main
from stateplay_rl.config.rollout import RolloutConfig
from stateplay_rl.errors import EXIT_OK, EXIT_USAGE
from stateplay_rl.stages import rollout as stage
from stateplay_rl.stages.rollout import RolloutInputs, RolloutSummary


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the stage, which does nothing."""
    calls: list[Any] = []

    def run(config: RolloutConfig, inputs: RolloutInputs, out: Path) -> RolloutSummary:
        calls.append((config, inputs, out))
        return RolloutSummary(out, 3, 12, "a" * 64, calls[0][0].skip, already_done=inputs.resume)

    monkeypatch.setattr(stage, "run", run)
    monkeypatch.delenv("RL_RUN_ROOT", raising=False)
    return calls


def test_flags_reach_the_config(called: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rollout.yaml"
    file.write_text("limit: 9\nseed: 1\nsampling:\n  steps: 7\n")
    flags = "--world w.yaml --policy p.safetensors --mode joint --pool heldout --limit 5 --skip 2 --seed 4"
    command = ["rollout", "conditions", "--out", str(tmp_path / "out"), *flags.split(), "--config", str(file)]
    assert main([*command, "--set", "sampling.candidates=6", "--overwrite"]) == EXIT_OK
    ((config, inputs, out),) = called
    assert (config.world, config.policy, config.mode, config.pool) == (
        "w.yaml",
        Path("p.safetensors"),
        "joint",
        "heldout",
    )
    assert (config.limit, config.skip, config.seed) == (5, 2, 4)
    assert (config.sampling.steps, config.sampling.candidates) == (7, 6)
    assert inputs == RolloutInputs(Path("conditions"), resume=False, overwrite=True)
    assert out == tmp_path / "out"
    printed = capsys.readouterr().out
    for text in ("3 groups, 12 candidates, policy aaaaaaaaaaaa", "2 groups have no reference video", "finished"):
        assert text in printed


def test_defaults_and_a_finished_output(
    called: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RL_RUN_ROOT", str(tmp_path))
    assert main(["rollout", "conditions", "--out", "groups", "--resume"]) == EXIT_OK
    ((config, inputs, out),) = called
    assert config == RolloutConfig()
    assert inputs.resume
    assert out == tmp_path / "groups"
    printed = capsys.readouterr().out
    assert "was already finished" in printed
    assert "no reference" not in printed


@pytest.mark.parametrize("wrong", [["--mode", "all"], ["--pool", "train"], ["--set", "steps=3"], ["--limit", "0"], []])
def test_wrong_usage(called: list[Any], wrong: list[str], tmp_path: Path) -> None:
    command = ["rollout", *(["conditions"] if wrong else []), "--out", str(tmp_path / "out"), *wrong]
    assert main(command) == EXIT_USAGE
    assert called == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "option, name",
    [
        ("euler", "euler"),
        ("dpm2m", "dpm2m"),
        ("unipc3+taylor", "unipc3+taylor3"),
        ("ab2+firstblock", "ab2+firstblock0.1"),
    ],
)
def test_the_sampler_has_one_name(called: list[Any], tmp_path: Path, option: str, name: str) -> None:
    assert main(["rollout", "conditions", "--out", str(tmp_path / "out"), "--sampler", option]) == EXIT_OK
    assert called[0][0].sampling.sampler == name


@pytest.mark.parametrize("option", ["heun", "euler+", "euler+teacache", "+taylor", ""])
def test_unknown_samplers_are_refused(called: list[Any], tmp_path: Path, option: str) -> None:
    assert main(["rollout", "conditions", "--out", str(tmp_path / "out"), "--sampler", option]) == EXIT_USAGE
    assert called == []
