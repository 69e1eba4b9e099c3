"""`sprl score --probe` against servers whose noise and bias are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.drills.arena_groups import write_groups
from stateplay_rl.arena.serve_faults import FaultPlan
from stateplay_rl.cli.main import main
from stateplay_rl.config.score import JudgeConfig
from stateplay_rl.errors import EXIT_INPUT, EXIT_OK
from stateplay_rl.stages.judge_choice import make_judge
from stateplay_rl.stages.remote_judging import probe_warnings
from stateplay_rl.stores.manifest import read_manifest
from tests.arena.test_serve import serving

BIAS = (6.0, 0.0, 0.0, -6.0)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_groups(tmp_path_factory.mktemp("arena") / "groups", 6, rendered=6)


def probe(groups: Path, out: Path, url: str, *flags: str) -> int:
    arguments = ["score", str(groups), "--judge", "openai", "--base-url", url, "--probe", "--out", str(out), "-q"]
    return main([*arguments, *flags])


def read(out: Path) -> dict:
    return json.loads((out / "probe.json").read_text())


@pytest.mark.slow
def test_known_noise_and_bias_are_recovered(groups: Path, tmp_path: Path) -> None:
    plan = FaultPlan(seed=11, noise=4.0, request_noise=3.0, position_bias=BIAS, low=30.0, high=70.0)
    with serving(plan) as server:
        assert probe(groups, tmp_path / "probe", server.base_url) == EXIT_OK
        asked = server.log.counts["arrived"]
        # Again, elsewhere: the store answers.
        assert probe(groups, tmp_path / "again", server.base_url) == EXIT_OK
        assert server.log.counts["arrived"] == asked
    found = read(tmp_path / "probe")
    assert found["within"]["low"] <= 4.0 <= found["within"]["high"]
    assert found["between"]["low"] <= 3.0 <= found["between"]["high"]
    for place, bias in zip(found["position"], BIAS, strict=True):
        assert place["low"] <= bias <= place["high"]
    assert found["verdict"] == "passed"
    assert found["signal_to_noise"] > 2
    assert found["planted"]["reference"]["rank"] < 2
    assert found["planted"]["frozen"]["rank"] > 3
    read_manifest(tmp_path / "probe", schema="probe", verify_files=True)
    assert found["signal_to_noise"] == read(tmp_path / "again")["signal_to_noise"]


def test_a_judge_that_cannot_tell_is_warned_of(groups: Path, tmp_path: Path) -> None:
    """All scores are noise: the referee's range is one point."""
    with serving(FaultPlan(noise=15.0, low=50.0, high=50.0)) as server:
        assert probe(groups, tmp_path / "probe", server.base_url, "--limit", "3") == EXIT_OK
        spec = JudgeConfig(name="openai", base_url=server.base_url)
    judge = make_judge(spec, world="arena", out=tmp_path / "run")
    assert read(tmp_path / "probe")["verdict"] == "failed"
    (warning,) = probe_warnings(judge, 1.0)
    assert "less than 1" in warning
    other = make_judge(spec.model_copy(update={"model": "another"}), world="arena", out=tmp_path / "run")
    assert "never probed" in probe_warnings(other, 1.0)[0]
    assert probe_warnings(make_judge(JudgeConfig(name="referee"), world="arena"), 1.0) == []


def test_a_judge_of_this_process_is_probed_too(groups: Path, tmp_path: Path) -> None:
    arguments = ["score", str(groups), "--judge", "referee", "--probe", "--limit", "2", "-q"]
    assert main([*arguments, "--out", str(tmp_path / "probe")]) == EXIT_OK
    found = read(tmp_path / "probe")
    assert found["noise_free"]
    assert found["duplicate_gap"] == 0.0
    assert all(place["value"] == 0.0 for place in found["position"])
    assert found["planted"]["frozen"]["score"] < 30
    assert found["prompt_shift"] is None
    assert main([*arguments, "--out", str(tmp_path / "probe"), "--resume"]) == EXIT_OK
    assert main(["report", str(tmp_path / "probe"), "--out", str(tmp_path / "report")]) == EXIT_OK
    assert "signal to noise" in (tmp_path / "report" / "report.html").read_text()


def test_one_group_is_too_few(groups: Path, tmp_path: Path) -> None:
    assert probe(groups, tmp_path / "probe", "http://127.0.0.1:9/v1", "--limit", "1") == EXIT_INPUT
