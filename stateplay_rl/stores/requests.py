"""The request store: every attempt at a paid request, its intent on the disk before it is sent.

One attempt is a row. It begins as `sent`, committed before the first byte leaves, and ends as

* `answered`: a complete answer with status 200, kept in ``raw/``, whether it could be read or not;
* `rejected`: certainly neither answered nor billed (no connection, 408, 409, 429, 4xx, 5xx);
* `in_doubt`: bytes left and no complete answer came. It may have been billed, and is priced as if.

Several processes may use one store at a time: the ranks of a training run, or `score` beside one. Each holds a
session; a row that is still `sent` although its session is dead becomes `in_doubt`.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores import atomic, layout
from stateplay_rl.stores.attempts import Attempt, AttemptEnd, Intent, request_id_of
from stateplay_rl.stores.commit_queue import CommitQueue
from stateplay_rl.stores.foreign import parse_json
from stateplay_rl.stores.manifest import utc_now
from stateplay_rl.stores.session import Session
from stateplay_rl.stores.sqlite import connect, sqlite_errors

STORE_VERSION = 1
_IMAGE_LOCKS = 64
KILLED = "killed: no outcome was recorded, the process that sent it died"
_HINT = "restore it from a copy; deleting the store means paying again"

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS attempts (
    request_id TEXT PRIMARY KEY,
    key TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    group_id TEXT NOT NULL,
    judge_id TEXT NOT NULL,
    protocol_sha256 TEXT NOT NULL,
    model TEXT NOT NULL,
    base_url TEXT NOT NULL,
    images TEXT NOT NULL,
    purpose TEXT NOT NULL,
    estimated_input_tokens INTEGER NOT NULL,
    session TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('sent', 'answered', 'rejected', 'in_doubt')),
    reason TEXT,
    http_status INTEGER,
    sent_utc TEXT NOT NULL,
    ended_utc TEXT,
    latency_seconds REAL,
    input_tokens INTEGER,
    output_tokens INTEGER,
    cost REAL,
    answered_model TEXT,
    UNIQUE (key, attempt)
);
CREATE INDEX IF NOT EXISTS attempts_of_group ON attempts (group_id);
"""


_COLUMNS = tuple(field.name for field in fields(Attempt))


def _attempt(row: sqlite3.Row | Sequence[Any]) -> Attempt:
    values = dict(zip(_COLUMNS, row, strict=True))
    return Attempt(**{**values, "images": tuple(parse_json(values["images"]))})


class RequestStore:
    """The store of one run root, for any number of threads and processes.

    Args:
        folder: ``requests/``; made when it does not exist.

    Raises:
        CorruptionError, InputError: damaged, or of a newer version.
        OutsideError: disk full or read-only.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with atomic.disk_errors(folder):
            for name in (layout.REQUEST_IMAGES_FOLDER, layout.REQUEST_RAW_FOLDER):
                (folder / name).mkdir(parents=True, exist_ok=True)
        self._session = Session(folder)
        try:
            self._queue = CommitQueue(folder / layout.REQUESTS)
        except BaseException:
            self._session.end()
            raise
        try:
            self._queue.run(_prepare)
            self.left_in_doubt: tuple[str, ...] = self._queue.run(self._mark_orphans)
            """Attempts of processes that died, found and marked just now."""
        except BaseException:
            self.close()
            raise
        self._image_locks = tuple(threading.Lock() for _ in range(_IMAGE_LOCKS))
        self._known_images: set[str] = set()

    def attempts(self, key: str) -> tuple[Attempt, ...]:
        """All attempts at one request, in order."""
        return self._queue.run(lambda database: _select(database, "WHERE key = ? ORDER BY attempt", (key,)))

    def begin(self, intent: Intent, known: int) -> str | None:
        """Record that a request is about to be sent; returns the attempt's id once that is on the disk.

        Args:
            intent: what will be sent.
            known: attempts at this request that the caller has seen and decided upon.

        Returns:
            None when another process has made an attempt meanwhile: look again before anything is sent.
        """
        return self._queue.run(lambda database: _insert(database, intent, known, self._session.name))

    def is_being_sent(self, attempt: Attempt) -> bool:
        """Whether an open attempt belongs to a process that still runs."""
        return attempt.state == "sent" and self._session.is_alive(attempt.session)

    def end(self, request_id: str, end: AttemptEnd, raw: Mapping[str, Any] | None = None) -> None:
        """Record how an attempt ended; the raw answer is on the disk before the row says `answered`."""
        if raw is not None:
            atomic.write_json(self.raw_file(request_id), raw)
        self._queue.run(lambda database: _update(database, request_id, end))

    def mark_open_as_in_doubt(self, reason: str) -> tuple[str, ...]:
        """Give up on all attempts of this store that are still `sent`; returns their ids."""
        return self._queue.run(lambda database: _mark(database, reason, self._session.name))

    def find_orphans(self) -> None:
        """Mark what processes that have died since left behind."""
        self._queue.run(self._mark_orphans)

    def _mark_orphans(self, database: sqlite3.Connection) -> tuple[str, ...]:
        rows = database.execute("SELECT DISTINCT session FROM attempts WHERE state = 'sent'").fetchall()
        dead = [str(row[0]) for row in rows if not self._session.is_alive(str(row[0]))]
        return tuple(request_id for session in dead for request_id in _mark(database, KILLED, session))

    def raw_file(self, request_id: str) -> Path:
        """Where an attempt's request and raw answer lie."""
        return self.folder / layout.raw_file(request_id)

    def raw(self, request_id: str) -> dict[str, Any]:
        """An attempt's request (pictures by hash) and raw answer.

        Raises:
            CorruptionError: missing or damaged.
        """
        return read_raw(self.folder, request_id)

    def keep_image(self, jpeg: bytes) -> str:
        """Store a picture under its hash, once; returns the hash. It is on the disk afterwards."""
        sha256 = atomic.sha256_bytes(jpeg)
        # Two threads with one picture would write one temporary file; those with others must not wait.
        with self._image_locks[int(sha256[:2], 16) % _IMAGE_LOCKS]:
            if sha256 not in self._known_images:
                path = self.image_file(sha256)
                if not path.is_file() or path.stat().st_size != len(jpeg):
                    atomic.write_bytes(path, jpeg)
                self._known_images.add(sha256)
        return sha256

    def image_file(self, sha256: str) -> Path:
        """Where a picture lies."""
        return self.folder / layout.request_image_file(sha256)

    def close(self) -> None:
        """Close the database and end the session; a second call does nothing."""
        self._queue.close()
        self._session.end()

    def __enter__(self) -> RequestStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_attempts(folder: Path, group_ids: Iterable[str] | None = None) -> tuple[Attempt, ...]:
    """Attempts of a store without writing to it, in the order in which they were sent.

    Args:
        folder: ``requests/``.
        group_ids: only of these groups; None for all.

    Raises:
        InputError: no store there.
        CorruptionError: damaged.
    """
    path = folder / layout.REQUESTS
    with sqlite_errors(path), closing(connect(path, read_only=True)) as database:
        found = _select(database, "ORDER BY rowid", ())
    if group_ids is None:
        return found
    wanted = set(group_ids)
    return tuple(attempt for attempt in found if attempt.group_id in wanted)


def read_raw(folder: Path, request_id: str) -> dict[str, Any]:
    """As `RequestStore.raw`, without opening the store.

    Raises:
        CorruptionError: missing or damaged.
    """
    file = folder / layout.raw_file(request_id)
    try:
        value = parse_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CorruptionError(f"{file} cannot be read: {error}", _HINT) from error
    if not isinstance(value, dict) or "answer" not in value:
        raise CorruptionError(f"{file} lacks field 'answer'", _HINT)
    return value


def _prepare(database: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";"):
        if statement.strip():
            database.execute(statement)
    database.execute("INSERT OR IGNORE INTO meta VALUES ('version', ?)", (str(STORE_VERSION),))
    version = int(database.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()[0])
    if version > STORE_VERSION:
        what = f"the request store has version {version}, this sprl reads {STORE_VERSION}"
        raise InputError(what, "upgrade stateplay-rl")
    check = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if check != "ok":
        raise CorruptionError(f"the request store is damaged: {check}", _HINT)


def _mark(database: sqlite3.Connection, reason: str, session: str) -> tuple[str, ...]:
    where = "WHERE state = 'sent' AND session = ?"
    rows = database.execute(f"SELECT request_id FROM attempts {where} ORDER BY rowid", (session,)).fetchall()
    values = (reason, utc_now(), session)
    database.execute(f"UPDATE attempts SET state = 'in_doubt', reason = ?, ended_utc = ? {where}", values)
    return tuple(str(row[0]) for row in rows)


def _select(database: sqlite3.Connection, where: str, values: tuple[Any, ...]) -> tuple[Attempt, ...]:
    rows = database.execute(f"SELECT {', '.join(_COLUMNS)} FROM attempts {where}", values)
    return tuple(_attempt(row) for row in rows)


def _insert(database: sqlite3.Connection, intent: Intent, known: int, session: str) -> str | None:
    query = "SELECT coalesce(max(attempt), 0) FROM attempts WHERE key = ?"
    number = 1 + int(database.execute(query, (intent.key,)).fetchone()[0])
    if number != known + 1:
        return None
    row = asdict(intent) | {
        "session": session,
        "images": json.dumps(list(intent.images)),
        "request_id": request_id_of(intent.key, number),
        "attempt": number,
        "state": "sent",
        "sent_utc": utc_now(),
    }
    marks = ", ".join("?" for _ in row)
    database.execute(f"INSERT INTO attempts ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
    return str(row["request_id"])


def _update(database: sqlite3.Connection, request_id: str, end: AttemptEnd) -> None:
    row = asdict(end) | {"ended_utc": utc_now()}
    changes = ", ".join(f"{name} = ?" for name in row)
    # An attempt that was given up meanwhile and answered after all is answered: the later fact counts.
    database.execute(f"UPDATE attempts SET {changes} WHERE request_id = ?", (*row.values(), request_id))
