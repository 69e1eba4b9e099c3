"""The request store: intents first, raw answers for good, dead processes found."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stateplay_rl.errors import CorruptionError, InputError, OutsideError
from stateplay_rl.stores import atomic
from stateplay_rl.stores.attempts import AttemptEnd, Intent, request_id_of
from stateplay_rl.stores.requests import RequestStore, read_attempts, read_raw

ROOT = Path(__file__).resolve().parents[2]
INTENT = Intent(
    key="ab" * 32,
    group_id="g0",
    judge_id="openai:m",
    protocol_sha256="cd" * 32,
    model="m",
    base_url="http://127.0.0.1/v1",
    images=("1" * 64, "2" * 64),
    purpose="score",
    estimated_input_tokens=1000,
)


def begin(store: RequestStore, intent: Intent = INTENT, known: int = 0) -> str:
    request_id = store.begin(intent, known)
    assert request_id is not None
    return request_id


def test_an_attempt_from_intent_to_answer(tmp_path: Path) -> None:
    with RequestStore(tmp_path / "requests") as store:
        request_id = begin(store)
        assert request_id == request_id_of(INTENT.key, 1)
        # On the disk before anything is sent: another connection sees it.
        (row,) = read_attempts(tmp_path / "requests")
        assert (row.state, row.group_id, row.images) == ("sent", "g0", INTENT.images)
        store.end(request_id, AttemptEnd("answered", None, 200, 1.5, 900, 80, 0.01, "m"), {"answer": "{}"})
        (row,) = store.attempts(INTENT.key)
        assert (row.state, row.http_status, row.input_tokens, row.cost) == ("answered", 200, 900, 0.01)
        assert row.ended_utc is not None
        assert store.raw(request_id) == {"answer": "{}"}
        assert store.attempts("other") == ()


def test_attempts_are_numbered_by_key(tmp_path: Path) -> None:
    with RequestStore(tmp_path) as store:
        first = begin(store)
        store.end(first, AttemptEnd("rejected", "http_429", 429))
        second = begin(store, known=1)
        other = begin(store, replace(INTENT, key="ef" * 32))
        assert [first[-2:], second[-2:], other[-2:]] == ["-1", "-2", "-1"]


def test_nothing_begins_on_old_knowledge(tmp_path: Path) -> None:
    """Two processes that both saw no attempt: only one may send."""
    with RequestStore(tmp_path) as one, RequestStore(tmp_path) as two:
        begin(one)
        assert two.begin(INTENT, 0) is None
        assert len(two.attempts(INTENT.key)) == 1


def test_a_living_process_is_not_in_doubt(tmp_path: Path) -> None:
    with RequestStore(tmp_path) as one:
        begin(one)
        with RequestStore(tmp_path) as two:
            assert two.left_in_doubt == ()
            (row,) = two.attempts(INTENT.key)
            assert two.is_being_sent(row)
            two.mark_open_as_in_doubt("only my own")
            assert two.attempts(INTENT.key)[0].state == "sent"


def test_what_a_killed_process_was_sending_is_in_doubt(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tests.stores.test_requests import INTENT\n"
        "from stateplay_rl.stores.requests import RequestStore\n"
        f"store = RequestStore(Path({str(tmp_path)!r}))\n"
        "store.begin(INTENT, 0); print('sent', flush=True); time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"sent\n"
    with RequestStore(tmp_path) as beside:
        assert beside.left_in_doubt == ()
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        beside.find_orphans()
        (row,) = beside.attempts(INTENT.key)
    assert row.state == "in_doubt"
    assert (row.reason or "").startswith("killed:")


def test_an_interrupted_attempt_that_is_answered_after_all_counts_as_answered(tmp_path: Path) -> None:
    with RequestStore(tmp_path) as store:
        request_id = begin(store)
        assert store.mark_open_as_in_doubt("interrupted") == (request_id,)
        store.end(request_id, AttemptEnd("answered", None, 200), {"answer": "{}"})
        assert store.attempts(INTENT.key)[0].state == "answered"


def test_pictures_are_kept_once_under_their_hash(tmp_path: Path) -> None:
    with RequestStore(tmp_path) as store:
        sha256 = store.keep_image(b"jpeg")
        assert store.keep_image(b"jpeg") == sha256 == atomic.sha256_bytes(b"jpeg")
        assert store.image_file(sha256).read_bytes() == b"jpeg"
        assert [file.name for file in (tmp_path / "images").iterdir()] == [f"{sha256}.jpg"]
    # A half-written one of a power loss is written again.
    store.image_file(sha256).write_bytes(b"jp")
    with RequestStore(tmp_path) as again:
        again.keep_image(b"jpeg")
        assert again.image_file(sha256).read_bytes() == b"jpeg"


def test_a_failed_write_of_the_answer_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The raw answer comes first: a row never says `answered` without it."""

    def full(path: Path, value: object) -> str:
        raise OutsideError(f"cannot write {path}: no space left")

    with RequestStore(tmp_path) as store:
        request_id = begin(store)
        monkeypatch.setattr(atomic, "write_json", full)
        with pytest.raises(OutsideError):
            store.end(request_id, AttemptEnd("answered", None, 200), {"answer": "{}"})
        assert store.attempts(INTENT.key)[0].state == "sent"


def test_damage_is_named(tmp_path: Path) -> None:
    with RequestStore(tmp_path) as store:
        request_id = begin(store)
        store.end(request_id, AttemptEnd("answered", None, 200), {"answer": "{}"})
        file = store.raw_file(request_id)
    for text in ("{", "[]", "{}"):
        file.write_text(text)
        with pytest.raises(CorruptionError, match=file.name):
            read_raw(tmp_path, request_id)
    with pytest.raises(InputError, match="cannot be a file name"):
        read_raw(tmp_path, "../../etc/passwd")
    (tmp_path / "requests.sqlite").write_bytes(b"x" * 4096)
    with pytest.raises(CorruptionError):
        RequestStore(tmp_path)
    with pytest.raises(InputError):
        read_attempts(tmp_path / "nowhere")


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    RequestStore(tmp_path).close()
    with sqlite3.connect(tmp_path / "requests.sqlite") as database:
        database.execute("UPDATE meta SET value = '99'")
    with pytest.raises(InputError, match="version 99"):
        RequestStore(tmp_path)


def test_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    with RequestStore(tmp_path):
        assert len(list((tmp_path / "sessions").iterdir())) == 1
    assert list((tmp_path / "sessions").iterdir()) == []
