"""Paid once: what is sent again, what never is, and what the store remembers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.config.judging import PriceConfig, RequestsConfig
from stateplay_rl.config.score import SingleJudgeConfig
from stateplay_rl.errors import OutsideError
from stateplay_rl.judges.budget import BudgetReachedError
from stateplay_rl.judges.openai_judge import OpenAIJudge
from stateplay_rl.judges.remote import StoppedError
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.requests import read_attempts
from tests.judges.paid_groups import stored
from tests.judges.raw_server import Behaviour, answer, reset, send, serving

LABELS = "ABCD"
FAST = {"backoff_first_seconds": 0.01, "backoff_most_seconds": 0.02, "read_seconds": 0.5, "request_seconds": 5.0}


def completion(scores: dict[str, Any], model: str = "gpt-6.1-sol", **message: Any) -> bytes:
    content = json.dumps({"scores": scores, "evidence": {"A": "hits at 0.4 s"}})
    value = {
        "model": model,
        "choices": [{"message": {"content": content, **message}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
    }
    return answer("200 OK", json.dumps(value).encode())


GOOD = completion({"A": 10, "B": 20, "C": 30, "D": 40})
PROSE = answer(
    "200 OK",
    json.dumps({"model": "gpt-6.1-sol", "choices": [{"message": {"content": "4 fine videos"}}]}).encode(),
)
BUSY = answer("429 X", b"slow", "Retry-After: 0\r\n")
ERROR = answer("500 X", b"oops")


class Script:
    """Answers the n-th request with the n-th step; the last one for all later ones."""

    def __init__(self, *steps: bytes | Behaviour) -> None:
        self._steps: list[Behaviour] = [send(step) if isinstance(step, bytes) else step for step in steps]
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self, connection: Any, request: bytes) -> None:
        with self._lock:
            step = self._steps[min(self.count, len(self._steps) - 1)]
            self.count += 1
        step(connection, request)


@contextmanager
def judging(folder: Path, script: Script, *, resend: bool = False, **limits: Any) -> Iterator[OpenAIJudge]:
    with serving(script) as (url, _):
        spec = SingleJudgeConfig(name="openai", base_url=url, requests=RequestsConfig(**{**FAST, **limits}))
        judge = OpenAIJudge(spec, folder / "requests", resend_in_doubt=resend)
        try:
            yield judge
        finally:
            judge.close()


@pytest.fixture
def group(tmp_path: Path) -> StoredGroup:
    return stored(tmp_path / "groups")


def states(folder: Path) -> list[tuple[str, str | None]]:
    return [(a.state, (a.reason or "").partition(":")[0] or None) for a in read_attempts(folder / "requests")]


def test_scores_come_back_in_the_stored_order(group: StoredGroup, tmp_path: Path) -> None:
    with judging(tmp_path, Script(GOOD)) as judge:
        verdict = judge.score_group(group)
    order = verdict.details["order"]
    expected = [0.0] * 4
    for label, candidate in enumerate(order):
        expected[candidate] = 10.0 * (label + 1)
    assert list(verdict.scores) == expected
    assert verdict.details["candidates"][order[0]] == {"label": "A", "evidence": "hits at 0.4 s"}
    assert verdict.details["model"] == "gpt-6.1-sol"
    (attempt,) = read_attempts(tmp_path / "requests")
    assert verdict.request_id == attempt.request_id
    assert (attempt.input_tokens, attempt.output_tokens, attempt.cost) == (1000, 100, None)
    assert len(attempt.images) == 121
    assert all((tmp_path / "requests" / "images" / f"{sha256}.jpg").is_file() for sha256 in attempt.images)


def test_the_second_time_is_free(group: StoredGroup, tmp_path: Path) -> None:
    script = Script(GOOD)
    verdicts = []
    for _ in range(2):
        with judging(tmp_path, script) as judge:
            verdicts.append(judge.score_group(group))
    assert verdicts[0] == verdicts[1]
    assert script.count == 1


def test_what_was_certainly_not_billed_is_tried_again(group: StoredGroup, tmp_path: Path) -> None:
    script = Script(BUSY, ERROR, ERROR, GOOD)
    with judging(tmp_path, script) as judge:
        assert judge.score_group(group).status == "scored"
    assert states(tmp_path) == [("rejected", "http_429"), ("rejected", "http_500")] + [("rejected", "http_500")] + [
        ("answered", None)
    ]


def test_an_unread_answer_is_asked_once_more(group: StoredGroup, tmp_path: Path) -> None:
    with judging(tmp_path, Script(PROSE, GOOD)) as judge:
        assert judge.score_group(group).status == "scored"
    assert states(tmp_path) == [("answered", "no_json"), ("answered", None)]


@pytest.mark.parametrize(
    "bad, reason",
    [
        (PROSE, "no_json"),
        (completion({"A": 1, "B": 2, "C": 3}), "labels"),
        (completion({"A": 1, "B": 2, "C": 3, "D": 4}, model="gpt-5.5"), "model_mismatch"),
        (completion({"A": 1, "B": 2, "C": 3, "D": 4}, refusal="I cannot"), "refused"),
        (answer("200 OK", b"<html>login</html>"), "no_json"),
        (answer("200 OK", b'{"error": {"message": "upstream"}}'), "no_json"),
        (answer("200 OK", b""), "no_json"),
        (answer("200 OK", b"[1, 2]"), "no_json"),
        (answer("200 OK", b'{"choices": [null]}'), "no_json"),
    ],
)
def test_two_unread_answers_are_a_failure_for_good(bad: bytes, reason: str, group: StoredGroup, tmp_path: Path) -> None:
    script = Script(bad)
    for _ in range(2):
        with judging(tmp_path, script, resend=True) as judge:
            verdict = judge.score_group(group)
        assert verdict.status == "failed"
        assert verdict.scores == (None,) * 4
        assert (verdict.reason or "").startswith(reason)
    assert script.count == 2


def test_in_doubt_is_never_sent_again_unasked(group: StoredGroup, tmp_path: Path) -> None:
    script = Script(lambda connection, request: reset(connection), GOOD)
    for _ in range(3):
        with judging(tmp_path, script) as judge:
            verdict = judge.score_group(group)
        assert verdict.status == "in_doubt"
    assert script.count == 1
    with judging(tmp_path, script, resend=True) as judge:
        assert judge.score_group(group).status == "scored"
    assert states(tmp_path) == [("in_doubt", "no_complete_answer"), ("answered", None)]
    with judging(tmp_path, script) as judge:
        assert judge.score_group(group).status == "scored"
    assert script.count == 2


def test_a_new_doubt_is_not_sent_again_by_the_same_command(group: StoredGroup, tmp_path: Path) -> None:
    script = Script(lambda connection, request: reset(connection))
    with judging(tmp_path, script) as judge:
        judge.score_group(group)
    with judging(tmp_path, script, resend=True) as judge:
        assert judge.score_group(group).status == "in_doubt"
    assert script.count == 2


def test_doubt_after_an_unread_answer(group: StoredGroup, tmp_path: Path) -> None:
    script = Script(PROSE, lambda connection, request: reset(connection), PROSE)
    with judging(tmp_path, script) as judge:
        assert judge.score_group(group).status == "in_doubt"
    with judging(tmp_path, script, resend=True) as judge:
        verdict = judge.score_group(group)
    assert (verdict.status, script.count) == ("failed", 3)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_that_is_refused_for_good_fails_its_group(status: int, group: StoredGroup, tmp_path: Path) -> None:
    script = Script(answer(f"{status} X", b"bad"))
    with judging(tmp_path, script) as judge:
        verdict = judge.score_group(group)
    assert verdict.status == "failed"
    assert (verdict.reason or "").startswith(f"http_{status}")
    assert script.count == 1


@pytest.mark.parametrize("status", [401, 402, 403, 404, 307])
def test_trouble_of_all_requests_stops_the_command(status: int, group: StoredGroup, tmp_path: Path) -> None:
    script = Script(answer(f"{status} X", b"no", "Location: /v2\r\n"))
    with judging(tmp_path, script) as judge, pytest.raises(OutsideError, match=f"http_{status}"):
        judge.score_group(group)
    assert script.count == 1


def test_one_poisoned_group_fails_while_others_are_answered(tmp_path: Path) -> None:
    poisoned, fine = stored(tmp_path / "g", prompt="poison"), stored(tmp_path / "h", group_id="fine", prompt="fine")

    def behave(connection: Any, request: bytes) -> None:
        connection.sendall(ERROR if b"poison" in request else GOOD)

    with judging(tmp_path, Script(behave), tries_per_group=4) as judge:
        done = threading.Event()

        def others() -> None:
            while not done.is_set():
                judge.score_again(fine, next(numbers))

        numbers = iter(range(1, 10_000))
        thread = threading.Thread(target=others)
        thread.start()
        verdict = judge.score_group(poisoned)
        done.set()
        thread.join()
    assert verdict.status == "failed"
    assert (verdict.reason or "").startswith("http_500")


def test_an_endpoint_that_is_down_ends_the_command(group: StoredGroup, tmp_path: Path) -> None:
    with (
        judging(tmp_path, Script(ERROR), first_answer_seconds=0.2) as judge,
        pytest.raises(OutsideError, match="not answered once"),
    ):
        judge.score_group(group)


def test_stopping_ends_a_wait_at_once(group: StoredGroup, tmp_path: Path) -> None:
    asked = threading.Event()

    def behave(connection: Any, request: bytes) -> None:
        connection.sendall(answer("429 X", b"", "Retry-After: 3600\r\n"))
        asked.set()

    with judging(tmp_path, Script(behave)) as judge:
        threading.Thread(target=lambda: (asked.wait(30), judge.stop())).start()
        with pytest.raises(StoppedError):
            judge.score_group(group)


def test_the_budget_stops_before_a_request(tmp_path: Path) -> None:
    groups = [stored(tmp_path / "g", group_id=f"g{n}", prompt=f"p{n}") for n in range(3)]
    script = Script(BUSY, GOOD)
    with judging(tmp_path, script, max_requests=2) as judge:
        judge.score_group(groups[0])
        judge.score_group(groups[1])
        with pytest.raises(BudgetReachedError):
            judge.score_group(groups[2])
        # What was paid is still free.
        assert judge.score_group(groups[0]).status == "scored"
    assert script.count == 3


def test_doubt_is_priced_as_paid(group: StoredGroup, tmp_path: Path) -> None:
    prices = {"gpt-6.1-sol": PriceConfig(input_per_million=10.0, output_per_million=100.0)}
    script = Script(ERROR, PROSE, lambda connection, request: reset(connection))
    with judging(tmp_path, script, prices=prices) as judge:
        judge.score_group(group)
    rejected, unread, doubtful = read_attempts(tmp_path / "requests")
    assert rejected.cost == 0.0
    assert unread.cost == doubtful.cost
    most = doubtful.estimated_input_tokens * 10e-6 + 4096 * 100e-6
    assert doubtful.cost == pytest.approx(most)


def test_two_groups_with_the_same_content_are_paid_once(tmp_path: Path) -> None:
    group = stored(tmp_path / "g")
    script = Script(GOOD)
    with judging(tmp_path, script) as judge:
        verdicts: list[Any] = []
        threads = [threading.Thread(target=lambda: verdicts.append(judge.score_group(group))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert script.count == 1
    assert all(verdict == verdicts[0] for verdict in verdicts)


def test_two_judges_on_one_store_pay_once(group: StoredGroup, tmp_path: Path) -> None:
    """As two processes would: each has its own session; the second waits for the first."""
    release = threading.Event()
    arrived = threading.Event()

    def behave(connection: Any, request: bytes) -> None:
        arrived.set()
        release.wait(20)
        connection.sendall(GOOD)

    script = Script(behave)
    with judging(tmp_path, script, read_seconds=20.0) as first, serving(script) as (url, _):
        second = OpenAIJudge(first.spec.model_copy(update={"base_url": url}), tmp_path / "requests")
        verdicts: list[Any] = []
        one = threading.Thread(target=lambda: verdicts.append(first.score_group(group)))
        one.start()
        arrived.wait(20)
        two = threading.Thread(target=lambda: verdicts.append(second.score_group(group)))
        two.start()
        two.join(1.0)
        assert two.is_alive()
        release.set()
        one.join()
        two.join()
        second.close()
    assert script.count == 1
    assert verdicts[0].scores == verdicts[1].scores


def test_no_more_in_flight_than_allowed(tmp_path: Path) -> None:
    """Each answer is held until three requests are there; a fourth then has a moment to show itself."""
    groups = [stored(tmp_path / "g", group_id=f"g{n}", prompt=f"p{n}", size=(16, 16)) for n in range(9)]
    changed, now, most = threading.Condition(), [0], [0]

    def behave(connection: Any, request: bytes) -> None:
        with changed:
            now[0] += 1
            most[0] = max(most[0], now[0])
            changed.notify_all()
            changed.wait_for(lambda: most[0] >= 3, 30)
        time.sleep(0.1)
        with changed:
            now[0] -= 1
        connection.sendall(GOOD)

    with judging(tmp_path, Script(behave), in_flight=3, read_seconds=60.0, request_seconds=60.0) as judge:
        threads = [threading.Thread(target=judge.score_group, args=(group,)) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most[0] == 3


def test_nothing_secret_and_no_candidate_number_is_sent(
    group: StoredGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-0123456789")
    with serving(send(GOOD)) as (url, requests):
        spec = SingleJudgeConfig(name="openai", base_url=url, requests=RequestsConfig(**FAST))
        judge = OpenAIJudge(spec, tmp_path / "requests")
        judge.score_group(group)
        judge.close()
    (request,) = requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert b"sk-very-secret-0123456789" in head
    for word in (b"group-7f", b"cond-3c", b"macro_success", b"candidate_", b"p1_hp", b"sk-very"):
        assert word not in body
        assert word == b"sk-very" or word not in head
    for file in (tmp_path / "requests").rglob("*"):
        assert not file.is_file() or b"sk-very-secret" not in file.read_bytes()
