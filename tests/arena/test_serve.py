"""The judge server over real HTTP, as a process and in a thread."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer

from examples.drills.arena_groups import write_group
from stateplay_rl.arena.dataset import draw_conditions
from stateplay_rl.arena.serve import JudgeServer, parse_bias
from stateplay_rl.arena.serve_faults import FaultPlan
from stateplay_rl.judges.request_body import body_bytes
from stateplay_rl.stores.groups import GroupStore
from tests.judges.test_payload import Pictures, build

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def serving(plan: FaultPlan, log: Path | None = None, model: str | None = None) -> Iterator[JudgeServer]:
    server = JudgeServer(0, plan, model, log)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    group = write_group(GroupStore(tmp_path_factory.mktemp("g")), draw_conditions(1, seed=5)[0], "g0")
    pictures = Pictures()
    return body_bytes(build(group, pictures), pictures.__getitem__)


def post(url: str, data: bytes, **headers: str) -> dict[str, Any]:
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.loads(response.read())


def test_a_completion_in_the_usual_form(body: bytes, tmp_path: Path) -> None:
    with serving(FaultPlan(), tmp_path / "log") as server:
        answer = post(f"{server.base_url}/chat/completions", body, Authorization="Bearer sk-secret-4711")
    assert (answer["object"], answer["model"]) == ("chat.completion", "gpt-6.1-sol")
    assert answer["choices"][0]["finish_reason"] == "stop"
    scores = json.loads(answer["choices"][0]["message"]["content"])["scores"]
    assert set(scores) == set("ABCD")
    assert answer["usage"]["prompt_tokens"] > 1000
    log = (tmp_path / "log").read_text()
    assert [json.loads(line)["event"] for line in log.splitlines()] == ["arrived", "ended"]
    assert "4711" not in log


def test_models_are_listed_and_other_paths_are_not_served(body: bytes) -> None:
    with serving(FaultPlan(), model="judge-7") as server:
        with urllib.request.urlopen(f"{server.base_url}/models", timeout=10) as response:
            assert json.loads(response.read())["data"][0]["id"] == "judge-7"
        assert post(f"{server.base_url}/chat/completions", body)["model"] == "judge-7"
        for path, data, status in (("/embeddings", body, 404), ("/chat/completions", b"{}", 400)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                post(server.base_url + path, data)
            assert caught.value.code == status


@pytest.mark.parametrize(
    "fault, status", [({"rate_limit": 1.0, "retry_after": 7}, 429), ({"error": 1.0}, 500), ({"wrong_model": 1.0}, 200)]
)
def test_faults_over_http(body: bytes, fault: dict[str, float], status: int) -> None:
    with serving(FaultPlan(**fault)) as server:
        url = f"{server.base_url}/chat/completions"
        if status == 200:
            assert post(url, body)["model"] != "gpt-6.1-sol"
            return
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(url, body)
        assert caught.value.code == status
        assert caught.value.headers.get("Retry-After") == ("7" if status == 429 else None)


def test_a_reset_in_the_middle_of_the_body(body: bytes) -> None:
    with serving(FaultPlan(reset=1.0)) as server, pytest.raises((ConnectionError, OSError, ValueError)):
        post(f"{server.base_url}/chat/completions", body)


def test_the_process_announces_its_port_and_ends_on_terminate(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stateplay_rl.arena.serve", "--port", "0", "--port-file", str(tmp_path / "port")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        port = int((tmp_path / "port").read_text())
        assert line == f"serving http://127.0.0.1:{port}/v1"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as response:
            assert response.status == 200
    finally:
        process.terminate()
    assert process.wait(30) == 0


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A shell that is killed runs no trap: its server must not keep the port."""
    port_file = tmp_path / "port"
    serve = f"{sys.executable} -m stateplay_rl.arena.serve --port 0 --port-file {port_file} --with-parent"
    shell = subprocess.Popen(["bash", "-c", f"{serve} & wait"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    shell.stdout.readline()
    port = int(port_file.read_text())
    shell.kill()
    # The pipe ends when the last process that holds it has gone: the server.
    assert shell.stdout.read() == ""
    shell.wait(30)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10)


def test_a_port_in_use_is_told_in_words() -> None:
    with serving(FaultPlan()) as server:
        port = server.server_address[1]
        command = [sys.executable, "-m", "stateplay_rl.arena.serve", "--port", str(port)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 5
    assert result.stderr.startswith(f"error: port {port} cannot be used")
    assert "Traceback" not in result.stderr


def test_bias_from_text() -> None:
    assert parse_bias("5,0,-2.5") == (5.0, 0.0, -2.5)
    assert parse_bias("") == ()
    with pytest.raises(typer.BadParameter):
        parse_bias("5,x")
