"""After anything that goes wrong: may the request have been answered and billed, or certainly not?"""

from __future__ import annotations

import email.utils
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stateplay_rl.config.judging import RequestsConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.judges.http_client import ChatClient, HttpResult, retry_after
from tests.judges.raw_server import Behaviour, answer, drip, reset, send, serving

KEY = "sk-test-0123456789abcdef"
GOOD = json.dumps({"model": "m", "choices": [{"message": {"content": "{}"}, "finish_reason": "stop"}]}).encode()
LIMITS = RequestsConfig(connect_seconds=2, read_seconds=0.4, request_seconds=1.0)


class Body:
    """Stands for a request's body."""

    def __init__(self, data: bytes = b'{"model": "m"}') -> None:
        self._data, self.length, self.started = data, len(data), False

    def __iter__(self) -> Iterator[bytes]:
        self.started = True
        yield self._data


def ask(behaviour: Behaviour, body: Any = None, **limits: float) -> tuple[HttpResult, list[bytes]]:
    with serving(behaviour) as (url, requests):
        client = ChatClient(url, "TEST_JUDGE_KEY", LIMITS.model_copy(update=limits))
        result = client.send(body or Body())
        client.close()
    return result, requests


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_JUDGE_KEY", KEY)


def test_a_good_answer_and_what_was_sent() -> None:
    result, requests = ask(send(answer("200 OK", GOOD)))
    assert (result.kind, result.status, result.text) == ("answered", 200, GOOD.decode())
    (request,) = requests
    assert request.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert request.endswith(b'\r\n\r\n{"model": "m"}')
    assert f"Bearer {KEY}".encode() in request


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_these_are_certainly_not_billed_and_tried_again(status: int) -> None:
    result, requests = ask(send(answer(f"{status} X", b'{"error": "later"}', "Retry-After: 7\r\n")))
    assert (result.kind, result.status, result.retryable, result.for_all) == ("rejected", status, True, False)
    assert result.retry_after_seconds == 7
    assert result.reason.startswith(f"http_{status}: ")
    assert len(requests) == 1


@pytest.mark.parametrize(
    "status, for_all", [(400, False), (401, True), (402, True), (403, True), (404, True), (413, False), (422, False)]
)
def test_other_refusals_are_not_tried_again(status: int, for_all: bool) -> None:
    result, requests = ask(send(answer(f"{status} X", b"no")))
    assert (result.kind, result.retryable, result.for_all) == ("rejected", False, for_all)
    assert len(requests) == 1


def test_an_empty_account_is_no_rate_limit() -> None:
    result, _ = ask(send(answer("429 X", b'{"error": {"code": "insufficient_quota"}}')))
    assert (result.retryable, result.for_all) == (False, True)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    """Following it would send the request a second time, with the key, to somewhere else."""
    result, requests = ask(send(answer(f"{status} X", b"", "Location: http://127.0.0.1:9/v1\r\n")))
    assert (result.kind, result.retryable, result.for_all) == ("rejected", False, True)
    assert len(requests) == 1


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    body = Body()
    result = ChatClient(f"http://127.0.0.1:{port}/v1", "TEST_JUDGE_KEY", LIMITS).send(body)  # type: ignore[arg-type]
    assert (result.kind, result.retryable) == ("rejected", True)
    assert result.reason.startswith("no_connection")
    assert not body.started


def test_no_address() -> None:
    result = ChatClient("http://nowhere.invalid/v1", "TEST_JUDGE_KEY", LIMITS).send(Body())  # type: ignore[arg-type]
    assert (result.kind, result.retryable) == ("rejected", True)


HALF = answer("200 OK", GOOD[: len(GOOD) // 2], length=len(GOOD))


def half_then_reset(connection: socket.socket, request: bytes) -> None:
    connection.sendall(HALF)
    time.sleep(0.1)
    reset(connection)


BROKEN: dict[str, Behaviour] = {
    "reads and never answers": lambda connection, request: time.sleep(3),
    "reads and closes": lambda connection, request: connection.close(),
    "reads and resets": lambda connection, request: reset(connection),
    "half a body, then close": send(HALF),
    "half a body, then reset": half_then_reset,
    "half a head": send(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "not HTTP": send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "half a chunk": send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc"),
    "stops in the middle": lambda connection, request: (connection.sendall(HALF), time.sleep(3))[0],
    "drips for ever": drip(answer("200 OK", GOOD * 40), 0.02),
    "broken compression": send(answer("200 OK", b"not gzip", "Content-Encoding: gzip\r\n")),
}


@pytest.mark.parametrize("behaviour", BROKEN.values(), ids=BROKEN.keys())
def test_without_a_complete_answer_it_is_in_doubt(behaviour: Behaviour) -> None:
    result, requests = ask(behaviour)
    assert result.kind == "in_doubt"
    assert not result.retryable
    assert result.reason.startswith("no_complete_answer: ")
    assert len(requests) == 1


def test_a_refusal_whose_body_breaks_is_still_a_refusal() -> None:
    result, _ = ask(send(answer("503 X", b"half", "Retry-After: 2\r\n", length=400)))
    assert (result.kind, result.status, result.retryable) == ("rejected", 503, True)
    assert result.retry_after_seconds == 2


def test_an_endless_answer_is_cut() -> None:
    result, _ = ask(send(answer("200 OK", b"x" * (5 << 20))), request_seconds=20.0, read_seconds=10.0)
    assert result.kind == "in_doubt"
    assert "more than" in result.reason


def test_a_drip_ends_at_the_whole_requests_limit() -> None:
    result, _ = ask(drip(answer("200 OK", GOOD * 40), 0.02), request_seconds=0.3)
    assert result.kind == "in_doubt"
    assert "time limit" in result.reason


def test_a_key_that_the_server_repeats_is_blanked() -> None:
    echo = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()
    for status in ("401 X", "500 X", "200 OK"):
        result, _ = ask(send(answer(status, echo)))
        assert KEY not in result.reason + result.text
        assert "<TEST_JUDGE_KEY>" in result.reason + result.text


def test_a_key_is_needed_beyond_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_JUDGE_KEY")
    ChatClient("http://127.0.0.1:9/v1", "TEST_JUDGE_KEY", LIMITS).close()
    ChatClient("http://localhost:9/v1", "TEST_JUDGE_KEY", LIMITS).close()
    with pytest.raises(UsageError, match="TEST_JUDGE_KEY"):
        ChatClient("https://api.example.org/v1", "TEST_JUDGE_KEY", LIMITS)


@pytest.mark.parametrize("value", ["sk-\u00e9", "sk-a\nb", "sk-\x7f"])
def test_a_key_with_odd_characters_is_refused_unseen(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_JUDGE_KEY", value)
    with pytest.raises(UsageError, match="odd characters") as caught:
        ChatClient("http://127.0.0.1:9/v1", "TEST_JUDGE_KEY", LIMITS)
    assert value not in str(caught.value)


NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({}, None),
        ({"Retry-After": "3"}, 3.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"RETRY-AFTER": "0"}, 0.0),
        ({"Retry-After": email.utils.formatdate(NOW + 90, usegmt=True)}, 90.0),
        ({"Retry-After": email.utils.formatdate(NOW - 90, usegmt=True)}, 0.0),
        ({"Retry-After-Ms": "250", "Retry-After": "9"}, 0.25),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": ""}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds
