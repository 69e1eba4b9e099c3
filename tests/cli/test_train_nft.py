"""`sprl train-nft`: flags reach the config, the dry run, and what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.cli.main import main
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.errors import EXIT_INPUT, EXIT_OK, EXIT_USAGE
from stateplay_rl.stages.train_nft import plan
from stateplay_rl.stages.train_nft import run as stage
from stateplay_rl.stages.train_nft.run import TrainInputs, TrainSummary


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the stage, which does nothing."""
    calls: list[Any] = []

    def run(config: TrainNftConfig, inputs: TrainInputs, out: Path) -> TrainSummary:
        calls.append((config, inputs, out))
        ledger = {"unseen": 0, "trained": 7, "gated": 1}
        heldout = ((0, 41.26), (5, 55.5))
        return TrainSummary(out, 5, 20, 80, ledger, heldout, 2, out / "policy" / "p.safetensors", inputs.resume)

    monkeypatch.setattr(stage, "run", run)
    monkeypatch.delenv("RL_RUN_ROOT", raising=False)
    return calls


def test_flags_reach_the_config(called: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("mode: full\nseed: 1\nloss:\n  gating: guard\n")
    flags = "--world w.yaml --audit audit --judge referee --mode joint --seed 4 --off-policy --groups g --scores s"
    command = ["train-nft", "conditions", "--out", str(tmp_path / "out"), *flags.split(), "--config", str(file)]
    assert main([*command, "--set", "loss.beta_nft=0.5", "--resume"]) == EXIT_OK
    ((config, inputs, out),) = called
    assert (config.world, config.audit, config.judge.name) == ("w.yaml", Path("audit"), "referee")
    assert (config.mode, config.seed, config.off_policy) == ("joint", 4, True)
    assert (config.loss.gating, config.loss.beta_nft) == ("guard", 0.5)
    assert inputs == TrainInputs(Path("conditions"), Path("g"), Path("s"), resume=True, overwrite=False)
    assert inputs.hand_made
    assert out == tmp_path / "out"
    printed = capsys.readouterr().out
    for text in ("5 batches, 20 optimizer steps", "7 trained, 1 gated", "41.3 after 0 batches -> 55.5 after 5"):
        assert text in printed
    assert "unseen" not in printed


def test_defaults(called: list[Any], tmp_path: Path) -> None:
    assert main(["train-nft", "conditions", "--out", str(tmp_path / "out")]) == EXIT_OK
    ((config, inputs, _),) = called
    assert config == TrainNftConfig()
    assert not inputs.hand_made


def test_a_dry_run_prints_the_plan_and_calls_nothing(
    called: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "make_plan", lambda config, inputs, out: [("batches", "72 of 28"), ("disk", "9 GiB")])
    assert main(["train-nft", "conditions", "--out", str(tmp_path / "out"), "--dry-run"]) == EXIT_OK
    printed = capsys.readouterr().out
    assert "72 of 28" in printed
    assert "9 GiB" in printed
    assert called == []
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_without_conditions(called: list[Any], tmp_path: Path) -> None:
    assert main(["train-nft", str(tmp_path / "no"), "--out", str(tmp_path / "out"), "--dry-run"]) == EXIT_INPUT


@pytest.mark.parametrize(
    "wrong",
    [["--mode", "all"], ["--set", "loss.beta=1"], ["--set", "optimizer.samples_per_step=0"], ["--judge"], ["--nope"]],
)
def test_wrong_usage(called: list[Any], wrong: list[str], tmp_path: Path) -> None:
    assert main(["train-nft", "conditions", "--out", str(tmp_path / "out"), *wrong]) == EXIT_USAGE
    assert called == []
    assert list(tmp_path.iterdir()) == []
