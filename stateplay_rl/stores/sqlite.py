"""SQLite on any mount: rollback journal, full sync, one writer; sealed files opened immutable."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from stateplay_rl.errors import CorruptionError, InputError, OutputError, OutsideError
from stateplay_rl.stores.sealed import is_sealed

_BUSY_SECONDS = 5.0
_COPY_ATTEMPTS = 5
_HOT_JOURNAL = frozenset(
    {sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY, sqlite3.SQLITE_CANTOPEN}
    | {sqlite3.SQLITE_READONLY_CANTLOCK, sqlite3.SQLITE_READONLY_CANTINIT, sqlite3.SQLITE_IOERR_LOCK}
)
"""How a read-only open fails when a killed writer left a journal to roll back."""


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours; programming errors (IntegrityError, ...) pass.

    Raises:
        OutsideError: disk full, read-only or failing.
        OutputError: another process writes.
        CorruptionError: damaged, or not a database.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode & 0xFF
        if code in (
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_CANTOPEN,
        ):
            hint = "free space or make it writable, then run again with --resume"
            raise OutsideError(f"cannot write {path}: {error}", hint) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise OutputError(f"{path} is in use by another process", "wait until it has ended") from error
        if any(text in str(error) for text in ("no such", "unsupported file format", "malformed")):
            raise CorruptionError(f"{path}: {error}", "restore it from a copy") from error
        raise
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:
            raise
        raise CorruptionError(f"{path} is damaged: {error}", "restore it from a copy") from error


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a database in autocommit mode; transactions are explicit.

    A writer that was killed in a transaction leaves a journal that only a writer may roll back. A reader then gets the
    state before that transaction from a copy in memory; nothing is written.

    Args:
        path: the file; it must exist when `read_only`.
        read_only: never write; in a sealed directory the file is opened ``immutable``, without any lock.

    Raises:
        InputError: no such file.
        CorruptionError: not a database.
    """
    if not read_only:
        with sqlite_errors(path):
            database = _open(path, "?mode=rwc")
            database.execute("PRAGMA journal_mode=DELETE")
            database.execute("PRAGMA synchronous=FULL")
            _touch(database)
        return database
    if not path.is_file():
        raise InputError(f"{path} does not exist", "check the path")
    if is_sealed(path.parent):
        with sqlite_errors(path):
            database = _open(path, "?mode=ro&immutable=1")
            _touch(database)
        return database
    try:
        database = _open(path, "?mode=ro")
        _touch(database)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode not in _HOT_JOURNAL or not _journal(path).is_file():
            with sqlite_errors(path):
                raise
        database = _rolled_back(path)
    except sqlite3.DatabaseError:
        with sqlite_errors(path):
            raise
    return database


def _open(path: Path, query: str) -> sqlite3.Connection:
    name = quote(str(path.absolute()))
    return sqlite3.connect(f"file:{name}{query}", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)


def _touch(database: sqlite3.Connection) -> None:
    """The first read: opening alone does not look at the file."""
    database.execute("SELECT count(*) FROM sqlite_master")


def _journal(path: Path) -> Path:
    return path.with_name(path.name + "-journal")


def _rolled_back(path: Path) -> sqlite3.Connection:
    """The database as it was before the transaction that a kill cut off, in memory.

    Raises:
        CorruptionError: no consistent copy could be taken.
    """
    for _ in range(_COPY_ATTEMPTS):
        with TemporaryDirectory() as folder, sqlite_errors(path):
            copy = Path(folder) / path.name
            try:
                shutil.copyfile(path, copy)
                shutil.copyfile(_journal(path), _journal(copy))
            except FileNotFoundError:
                # A writer came back in between and cleaned up: a journal-less copy is as good.
                _journal(copy).unlink(missing_ok=True)
            on_disk = _open(copy, "?mode=rw")
            try:
                if on_disk.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok":
                    memory = sqlite3.connect(":memory:", isolation_level=None)
                    on_disk.backup(memory)
                    memory.execute("PRAGMA query_only=ON")
                    return memory
            finally:
                on_disk.close()
    raise CorruptionError(f"{path} is damaged, or being written to", "wait for the other command, or resume it")


@contextmanager
def transaction(database: sqlite3.Connection, path: Path) -> Iterator[sqlite3.Connection]:
    """All or nothing, on the disk after the block."""
    with sqlite_errors(path):
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
