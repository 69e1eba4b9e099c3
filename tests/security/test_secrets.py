"""No secret of the environment is in any artefact of the whole chain, nor in what the commands print."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.arena.serve_faults import FaultPlan
from stateplay_rl.cli.main import main
from tests.arena.test_serve import serving
from tests.e2e.command_line import Arena

SECRETS = {
    "OPENAI_API_KEY": "sk-chain-1f2e3d4c5b6a7988",
    "WANDB_API_KEY": "wandb-9c8b7a6f5e4d3c2b1a",
    "HF_TOKEN": "hf_QwErTyUiOpAsDfGhJkLz",
    "PROXY_PASSWORD": "correct-horse-battery",
}


def test_no_secret_in_any_artefact(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RL_RUN_ROOT", str(tmp_path))
    codes = []

    def sprl(*arguments: object) -> None:
        codes.append(main([str(argument) for argument in arguments]))

    # The server repeats the key in the name of its model: the worst that an answer can do.
    with serving(FaultPlan(malformed=0.2, rate_limit=0.2, retry_after=0), tmp_path / "server.jsonl") as server:
        openai = ("--judge", "openai", "--set", f"judge.base_url={server.base_url}")
        sprl("audit-ckpt", "--world", "arena", "--out", "audit", "-q")
        sprl(*arena.rollout(tmp_path / "groups", "--limit", 2))
        sprl("score", tmp_path / "groups", *openai, "--out", "scores", "-q")
        train = arena.train(tmp_path / "run", *openai, stage_conditions=2, heldout__conditions=0)
        sprl(*train)
        sprl("verify", "preflight", tmp_path / "run/config.yaml", "--conditions", arena.conditions, "--sample", 1,
             "--out", "preflight")  # fmt: skip
    sprl("verify", "dir", tmp_path / "run", "--out", "verified")
    sprl("report", tmp_path / "run", tmp_path / "scores", "--out", "report")
    with serving(FaultPlan(), model=f"m-{SECRETS['OPENAI_API_KEY']}") as server:
        again = ("--judge", "openai", "--base-url", server.base_url, "--model", "m", "--out", "repeated", "-q")
        main(["score", str(tmp_path / "groups"), *again])
    assert codes == [0] * len(codes), capfd.readouterr().err
    captured = capfd.readouterr()
    searched = 0
    for file in tmp_path.rglob("*"):
        if file.is_file():
            searched += 1
            data = file.read_bytes()
            for name, value in SECRETS.items():
                assert value.encode() not in data, f"{name} is in {file}"
    assert searched > 60
    for value in SECRETS.values():
        assert value not in captured.out + captured.err


def test_a_scan_that_cannot_fail_would_prove_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" + SECRETS["HF_TOKEN"].encode())
    assert any(SECRETS["HF_TOKEN"].encode() in file.read_bytes() for file in tmp_path.rglob("*"))
