"""SQLite on any mount: rollback journal, full sync, one writer; sealed files opened immutable."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from stateplay_rl.errors import CorruptionError, InputError, OutputError, OutsideError
from stateplay_rl.stores.sealed import is_sealed

_BUSY_SECONDS = 5.0


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

    Args:
        path: the file; it must exist when `read_only`.
        read_only: never write; in a sealed directory the file is opened ``immutable``, without any lock.

    Raises:
        InputError: no such file.
        CorruptionError: not a database.
    """
    if read_only and not path.is_file():
        raise InputError(f"{path} does not exist", "check the path")
    name = quote(str(path.absolute()))
    if read_only:
        query = "?mode=ro&immutable=1" if is_sealed(path.parent) else "?mode=ro"
    else:
        query = "?mode=rwc"
    with sqlite_errors(path):
        database = sqlite3.connect(f"file:{name}{query}", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
        if not read_only:
            database.execute("PRAGMA journal_mode=DELETE")
            database.execute("PRAGMA synchronous=FULL")
        database.execute("SELECT count(*) FROM sqlite_master")
    return database


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
