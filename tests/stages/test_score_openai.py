"""`sprl score --judge openai` through the real command line against the arena's server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from examples.drills.arena_groups import write_groups
from stateplay_rl.arena.serve_faults import FaultPlan
from stateplay_rl.cli.main import main
from stateplay_rl.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_OUTSIDE, EXIT_USAGE
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.stores.requests import read_attempts
from stateplay_rl.stores.scores import ScoreTable
from tests.arena.test_serve import serving

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-stage-test-55aa66bb77cc"
COUNT = 6


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_groups(tmp_path_factory.mktemp("arena") / "groups", COUNT, rendered=2)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_RUN_ROOT", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return tmp_path


def score(groups: Path, url: str, *flags: str, out: str = "scores") -> int:
    fast = ["--set", "judge.requests.backoff_first_seconds=0.05", "--set", "judge.requests.read_seconds=20"]
    return main(["score", str(groups), "--judge", "openai", "--base-url", url, "--out", out, "-q", *fast, *flags])


def statuses(root: Path, out: str = "scores") -> Counter[str]:
    return Counter(group.status for group in ScoreTable.read(root / out / "scores.parquet"))


def test_scores_over_http_are_the_referees(groups: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FaultPlan()) as server:
        assert score(groups, server.base_url) == EXIT_OK
    assert main(["score", str(groups), "--judge", "referee", "--out", "direct", "-q"]) == EXIT_OK
    http, direct = (ScoreTable.read(root / name / "scores.parquet") for name in ("scores", "direct"))
    for group in http:
        assert group.scores == pytest.approx(direct.group(group.group_id).scores, abs=3.0)
        assert group.rows[0].judge_id == "openai:gpt-6.1-sol"
        assert group.rows[0].request_id is not None
    manifest = read_manifest(root / "scores", schema="scores", verify_files=True)
    protocol = manifest.extra["protocols"]["openai:gpt-6.1-sol"]
    assert protocol["protocol"] == "mechanics-reward-v1"
    assert protocol["requests"] == "../requests"
    assert manifest.extra["protocol_sha256"] == http.rows[0].protocol_sha256
    assert "scored" in capsys.readouterr().out
    assert main(["verify", "dir", str(root / "scores"), "--out", "verified"]) == EXIT_OK


def test_another_output_costs_nothing(groups: Path, root: Path) -> None:
    with serving(FaultPlan()) as server:
        assert score(groups, server.base_url) == EXIT_OK
        assert score(groups, server.base_url, out="again") == EXIT_OK
        assert server.log.counts["arrived"] == COUNT
    # And needs no server any more.
    assert score(groups, "http://127.0.0.1:9/v1", out="third") == EXIT_OK
    tables = [(root / name / "verdicts.jsonl").read_bytes() for name in ("scores", "again", "third")]
    assert tables[0] == tables[1] == tables[2]


def test_another_protocol_is_another_request(groups: Path, root: Path) -> None:
    with serving(FaultPlan()) as server:
        assert score(groups, server.base_url) == EXIT_OK
        assert score(groups, server.base_url, "--set", "judge.protocol.include_prompt=false", out="b") == EXIT_OK
        assert score(groups, server.base_url, "--model", "other", out="c") == EXIT_OK
        assert server.log.counts["arrived"] == 3 * COUNT


def test_a_budget_stops_cleanly_and_loses_nothing(groups: Path, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(FaultPlan(delay=0.1)) as server:
        assert score(groups, server.base_url, "--max-requests", "4") == EXIT_OUTSIDE
        assert "--max-requests" in capfd.readouterr().err
        assert server.log.counts["completed"] == 4
        assert not (root / "scores" / "manifest.json").exists()
        assert score(groups, server.base_url, "--resume") == EXIT_OK
        assert server.log.counts["completed"] == COUNT
    assert statuses(root) == {"scored": COUNT}


def test_a_cost_budget_needs_a_price(groups: Path, root: Path) -> None:
    assert score(groups, "http://127.0.0.1:9/v1", "--max-cost", "1") == EXIT_USAGE
    price = "judge.requests.prices={gpt-6.1-sol: {input_per_million: 1, output_per_million: 1}}"
    with serving(FaultPlan()) as server:
        code = score(groups, server.base_url, "--set", price, "--max-cost", "0.0150")
        # Each request holds about 0.003 + 0.0041 and comes to 0.0031.
        assert code == EXIT_OUTSIDE
        assert 1 <= server.log.counts["completed"] < COUNT
        assert score(groups, server.base_url, "--set", price, "--resume", "--max-cost", "1") == EXIT_OK
    costs = json.loads((root / "scores" / "summary.json").read_text())["requests"]
    assert costs["cost"] == pytest.approx(sum(a.cost or 0 for a in read_attempts(root / "requests")))
    assert 0 < costs["cost"] < 0.1


def test_in_doubt_groups_are_listed_and_completed_on_demand(
    groups: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(FaultPlan(reset=0.5, seed=4)) as server:
        assert score(groups, server.base_url) == EXIT_OK
        first = statuses(root)
        assert first["in_doubt"] > 0
        assert "--resend-in-doubt" in capsys.readouterr().out
        arrived = server.log.counts["arrived"]
        assert arrived == COUNT
        assert score(groups, server.base_url, "--resume") == EXIT_OK
        assert server.log.counts["arrived"] == arrived
        server.plan = FaultPlan()
        assert score(groups, server.base_url, "--resume", "--resend-in-doubt") == EXIT_OK
        assert server.log.counts["arrived"] == arrived + first["in_doubt"]
    assert statuses(root) == {"scored": COUNT}
    lines = [json.loads(line)["group_id"] for line in (root / "scores" / "verdicts.jsonl").read_text().splitlines()]
    assert lines == sorted(lines)
    assert read_manifest(root / "scores", verify_files=True).extra["earlier_manifests"]


def test_a_resume_may_change_how_but_not_what(groups: Path, root: Path) -> None:
    with serving(FaultPlan()) as server:
        assert score(groups, server.base_url, "--max-requests", "2", "--in-flight", "2") == EXIT_OUTSIDE
        assert score(groups, server.base_url, "--resume", "--set", "judge.protocol.frames=12") == EXIT_USAGE
        assert score(groups, server.base_url, "--resume", "--model", "cheaper") == EXIT_USAGE
    with serving(FaultPlan()) as elsewhere:
        assert score(groups, elsewhere.base_url, "--resume", "--in-flight", "5") == EXIT_OK


def test_the_key_is_in_no_artefact(groups: Path, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also when the server repeats it, and when the command fails."""
    with serving(FaultPlan(malformed=0.4), model=f"m-{KEY}") as server:
        score(groups, server.base_url, "--model", "m")
    with serving(FaultPlan(malformed=0.3, rate_limit=0.2, retry_after=0), root / "log.jsonl") as server:
        assert score(groups, server.base_url, out="b") == EXIT_OK
        assert score(groups, server.base_url, "--dry-run", out="dry") == EXIT_OK
        assert score(groups, server.base_url, "--probe", "--limit", "2", out="probe") == EXIT_OK
    assert main(["report", str(root / "b"), str(root / "probe"), "--out", "report"]) == EXIT_OK
    captured = capfd.readouterr()
    assert KEY not in captured.out + captured.err
    searched = 0
    for file in root.rglob("*"):
        if file.is_file():
            searched += 1
            assert KEY.encode() not in file.read_bytes(), file
    assert searched > 50


def test_a_key_given_for_its_variable_is_not_repeated(
    groups: Path, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert score(groups, "http://127.0.0.1:9/v1", "--api-key-env", KEY) == EXIT_USAGE
    captured = capfd.readouterr()
    assert KEY not in captured.out + captured.err
    assert "NAME of an environment variable" in captured.err


def _process(groups: Path, root: Path, url: str, *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stateplay_rl", "score", str(groups), "--judge", "openai", "--base-url", url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RL_RUN_ROOT": str(root)}
    return subprocess.Popen(
        [*command, "--out", "scores", *flags],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Tests that run in the background of a shell ignore Ctrl-C, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _wait(condition, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_killed_in_flight_then_resumed(groups: Path, root: Path) -> None:
    with serving(FaultPlan(delay=30.0)) as server:
        process = _process(groups, root, server.base_url, "--in-flight", "3")
        _wait(lambda: server.log.counts["arrived"] == 3)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        server.plan = FaultPlan()
        assert score(groups, server.base_url, "--resume") == EXIT_OK
        assert server.log.counts["arrived"] == COUNT
    assert statuses(root) == {"in_doubt": 3, "scored": COUNT - 3}
    doubts = [a for a in read_attempts(root / "requests") if a.state == "in_doubt"]
    assert all((a.reason or "").startswith("killed") for a in doubts)


@pytest.mark.slow
def test_ctrl_c_finishes_what_is_in_flight(groups: Path, root: Path) -> None:
    with serving(FaultPlan(delay=2.0)) as server:
        process = _process(groups, root, server.base_url, "--in-flight", "2")
        _wait(lambda: server.log.counts["arrived"] >= 2)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=90)
        assert process.returncode == EXIT_INTERRUPTED, output.decode()
        arrived = server.log.counts["arrived"]
        assert {a.state for a in read_attempts(root / "requests")} == {"answered"}
        server.plan = FaultPlan()
        assert score(groups, server.base_url, "--resume") == EXIT_OK
        assert server.log.counts["arrived"] == COUNT
    assert arrived < COUNT
    assert statuses(root) == {"scored": COUNT}


@pytest.mark.slow
def test_a_second_ctrl_c_marks_it_in_doubt_and_says_which(groups: Path, root: Path) -> None:
    with serving(FaultPlan(delay=120.0)) as server:
        process = _process(groups, root, server.base_url, "--in-flight", "2")
        _wait(lambda: server.log.counts["arrived"] == 2)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        lines: list[bytes] = []
        while b"Ctrl-C again" not in (lines[-1] if lines else b""):
            lines.append(process.stdout.readline())
            assert lines[-1], b"".join(lines).decode()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=90)
    assert process.returncode == EXIT_INTERRUPTED
    doubts = [a for a in read_attempts(root / "requests") if a.state == "in_doubt"]
    assert len(doubts) == 2
    assert all(a.request_id.encode() in output for a in doubts)


def test_production_mode_fails_groups_that_do_not_fit(tmp_path: Path, root: Path) -> None:
    """Groups without a reference are not shown; the rest is judged."""
    from stateplay_rl.stores.manifest import OutputDirectory
    from tests.judges.paid_groups import stored
    from tests.judges.test_protocol import examples
    from tests.stages.test_score import WorldOnly

    with OutputDirectory.open(
        tmp_path / "g",
        schema="groups",
        version=1,
        command="rollout",
        config=WorldOnly(),
        inputs={},
        resume=False,
        overwrite=False,
    ) as output:
        stored(output.path, group_id="bare", has_reference=False)
        stored(output.path, group_id="short", frames=5)
        output.seal()
    files = ",".join(str(file) for file in examples(tmp_path))
    flags = ["--set", "judge.protocol.mode=production", "--set", f"judge.protocol.example_images=[{files}]"]
    with serving(FaultPlan()) as server:
        assert score(tmp_path / "g", server.base_url, *flags) == EXIT_OK
        assert server.log.counts["arrived"] == 0
    reasons = {
        g.group_id: (g.rows[0].reason or "").split(":")[0] for g in ScoreTable.read(root / "scores/scores.parquet")
    }
    assert reasons == {"bare": "no_reference", "short": "short_video"}


@pytest.mark.parametrize("probe", [(), ("--probe",)])
def test_without_a_key_nothing_is_begun(
    groups: Path,
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    probe: tuple[str, ...],
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert score(groups, "https://judge.invalid/v1", *probe) == EXIT_USAGE
    assert "--judge referee" in capsys.readouterr().err
    assert not (root / "scores").exists()


def test_the_store_must_not_lie_in_an_input(groups: Path, root: Path) -> None:
    assert score(groups, "http://127.0.0.1:9/v1", "--requests", str(groups / "requests")) == EXIT_USAGE
    assert not (groups / "requests").exists()


def test_a_damaged_group_stops_and_is_no_low_score(tmp_path: Path, root: Path) -> None:
    damaged = write_groups(tmp_path / "damaged", 2, rendered=2)
    video = GroupStore(damaged).read("g00001").candidate_video(0)
    video.write_bytes(video.read_bytes()[:-7])
    with serving(FaultPlan()) as server:
        assert score(damaged, server.base_url) == 3
        assert server.log.counts["arrived"] <= 1
