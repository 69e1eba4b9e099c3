"""The run's ledger: which condition belongs to which batch, and how far it has come.

``unseen -> reserved -> rolled -> scored -> trained | gated | failed``. Conditions are drawn in the order in
which the ledger was created, each once; a batch keeps its members whatever happens.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, get_args

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores.atomic import atomic_path, sha256_json
from stateplay_rl.stores.sqlite import connect, sqlite_errors, transaction

LedgerState = Literal["unseen", "reserved", "rolled", "scored", "trained", "gated", "failed"]
LEDGER_VERSION = 1
_BEFORE: dict[str, tuple[str, ...]] = {
    "rolled": ("reserved",),
    "scored": ("rolled",),
    "trained": ("scored",),
    "gated": ("rolled", "scored"),
    "failed": ("reserved", "rolled", "scored"),
}
_TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE conditions (
    position INTEGER PRIMARY KEY,
    condition_id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL DEFAULT 'unseen' CHECK (state IN {get_args(LedgerState)}),
    batch INTEGER,
    group_id TEXT,
    reason TEXT,
    CHECK ((state = 'unseen') = (batch IS NULL))
);
CREATE INDEX by_batch ON conditions (batch);
"""


@dataclass(frozen=True)
class LedgerEntry:
    """One condition of the ledger; `batch` is None while it is unseen."""

    position: int
    condition_id: str
    state: LedgerState
    batch: int | None
    group_id: str | None
    reason: str | None


class Ledger:
    """An open ledger. Written by one process (rank 0) only; close it before the directory is sealed."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        self._database = database

    @classmethod
    def create(cls, path: Path, condition_ids_in_order: Sequence[str]) -> Ledger:
        """A new ledger with every condition unseen; nothing is left behind when it fails.

        Raises:
            ValueError: a condition twice, or the file exists.
            OutsideError: disk full or read-only.
        """
        if path.exists():
            raise ValueError(f"ledger {path} exists")
        if len(set(condition_ids_in_order)) != len(condition_ids_in_order):
            raise ValueError("a condition is given twice")
        with atomic_path(path) as temp:
            database = connect(temp, read_only=False)
            try:
                with sqlite_errors(path):
                    database.executescript(_TABLES)
                with transaction(database, path):
                    database.execute("INSERT INTO meta VALUES ('version', ?)", (str(LEDGER_VERSION),))
                    rows = enumerate(condition_ids_in_order)
                    database.executemany("INSERT INTO conditions (position, condition_id) VALUES (?, ?)", rows)
            finally:
                database.close()
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Ledger:
        """An existing ledger; `read_only` for readers, who open a sealed one immutable.

        Raises:
            InputError: missing, or of a newer version.
            CorruptionError: damaged.
        """
        if not path.is_file():
            raise InputError(f"ledger {path} does not exist", "check the run directory")
        database = connect(path, read_only=read_only)
        try:
            with sqlite_errors(path):
                row = database.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
                check = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if row is None or check != "ok":
                raise CorruptionError(f"{path} is damaged: {check}", "restore it from a copy")
            if int(row[0]) > LEDGER_VERSION:
                what = f"{path} has version {row[0]}, this sprl reads {LEDGER_VERSION}"
                raise InputError(what, "upgrade stateplay-rl")
        except BaseException:
            database.close()
            raise
        return cls(path, database)

    def reserve(self, batch: int, count: int) -> tuple[str, ...]:
        """Members of a batch: the next `count` unseen conditions, or the same as before.

        Args:
            batch: 0, 1, 2, ... without gaps.
            count: number of conditions.

        Raises:
            ValueError: a batch out of sequence, or reserved before with another count.
            InputError: fewer than `count` conditions are unseen.
        """
        if count < 1:
            raise ValueError(f"count {count} must be positive")
        with transaction(self._database, self.path):
            members = tuple(entry.condition_id for entry in self.members(batch))
            if members:
                if len(members) != count:
                    raise ValueError(f"batch {batch} was reserved with {len(members)} conditions, not {count}")
                return members
            self._check_sequence(batch)
            rows = self._database.execute(
                "SELECT position, condition_id FROM conditions WHERE state = 'unseen' ORDER BY position LIMIT ?",
                (count,),
            ).fetchall()
            if len(rows) < count:
                raise InputError(
                    f"{self.path}: batch {batch} needs {count} conditions, {len(rows)} are unseen",
                    "plan fewer conditions, or build more",
                )
            self._database.executemany(
                "UPDATE conditions SET state = 'reserved', batch = ? WHERE position = ?",
                [(batch, position) for position, _ in rows],
            )
        return tuple(condition_id for _, condition_id in rows)

    def reserve_chosen(self, batch: int, condition_ids: Sequence[str]) -> tuple[str, ...]:
        """Members of a hand-made batch: exactly these conditions, in ledger order.

        Raises:
            ValueError: a batch out of sequence.
            InputError: a condition is not in the ledger, or another batch has consumed it.
        """
        with transaction(self._database, self.path):
            if not self.members(batch):
                self._check_sequence(batch)
            for condition_id in condition_ids:
                entry = self.entry(condition_id)
                if entry.batch not in (None, batch):
                    raise InputError(
                        f"{self.path}: condition {condition_id} was consumed by batch {entry.batch}",
                        "a condition is trained on once: roll out others",
                    )
                self._database.execute(
                    "UPDATE conditions SET state = 'reserved', batch = ? WHERE position = ? AND batch IS NULL",
                    (batch, entry.position),
                )
        return tuple(entry.condition_id for entry in self.members(batch))

    def _check_sequence(self, batch: int) -> None:
        last = self._database.execute("SELECT max(batch) FROM conditions").fetchone()[0]
        following = 0 if last is None else last + 1
        if batch != following:
            raise ValueError(f"batch {batch} out of sequence, the next is {following}")

    def mark(
        self,
        batch: int,
        condition_id: str,
        state: LedgerState,
        group_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Move a condition of a batch on; repeating a mark changes nothing.

        Args:
            batch: its batch.
            condition_id: the condition.
            state: ``rolled``, ``scored``, ``trained``, ``gated`` or ``failed``.
            group_id: kept from the earlier mark when None.
            reason: needed for ``gated`` and ``failed``.

        Raises:
            ValueError: no reason, or a step that does not exist.
            CorruptionError: the condition is not of that batch, or in another state than the step needs.
        """
        if state not in _BEFORE:
            raise ValueError(f"state {state!r} cannot be marked")
        if state in ("gated", "failed") and not reason:
            raise ValueError(f"state {state!r} needs a reason")
        with transaction(self._database, self.path):
            entry = self.entry(condition_id)
            if entry.batch != batch:
                self._refuse(f"condition {condition_id} is of batch {entry.batch}, not {batch}")
            if group_id is not None and entry.group_id not in (None, group_id):
                self._refuse(f"condition {condition_id} has group {entry.group_id}, not {group_id}")
            if entry.state != state and entry.state not in _BEFORE[state]:
                self._refuse(f"condition {condition_id} is {entry.state}, it cannot become {state}")
            if entry.state == state and (reason, group_id or entry.group_id) == (
                entry.reason,
                entry.group_id,
            ):
                return
            self._database.execute(
                "UPDATE conditions SET state = ?, group_id = coalesce(?, group_id), reason = ? WHERE condition_id = ?",
                (state, group_id, reason, condition_id),
            )

    def rewind_to(self, batch: int) -> None:
        """Back to a checkpoint: all batches from `batch` on are reserved again, with the same members."""
        with transaction(self._database, self.path):
            self._database.execute(
                "UPDATE conditions SET state = 'reserved', group_id = NULL, reason = NULL WHERE batch >= ?",
                (batch,),
            )

    def entry(self, condition_id: str) -> LedgerEntry:
        """One condition.

        Raises:
            InputError: not in this ledger.
        """
        with sqlite_errors(self.path):
            row = self._database.execute("SELECT * FROM conditions WHERE condition_id = ?", (condition_id,)).fetchone()
        if row is None:
            raise InputError(f"{self.path} has no condition {condition_id!r}", "use the run's own conditions")
        return LedgerEntry(*row)

    def members(self, batch: int) -> tuple[LedgerEntry, ...]:
        """Conditions of a batch in order; empty when it is not reserved."""
        with sqlite_errors(self.path):
            rows = self._database.execute("SELECT * FROM conditions WHERE batch = ? ORDER BY position", (batch,))
            return tuple(LedgerEntry(*row) for row in rows)

    def entries(self) -> tuple[LedgerEntry, ...]:
        """All conditions in order."""
        with sqlite_errors(self.path):
            rows = self._database.execute("SELECT * FROM conditions ORDER BY position")
            return tuple(LedgerEntry(*row) for row in rows)

    def batches(self) -> int:
        """Number of batches reserved so far."""
        with sqlite_errors(self.path):
            last = self._database.execute("SELECT max(batch) FROM conditions").fetchone()[0]
        return 0 if last is None else int(last) + 1

    def counts(self) -> dict[LedgerState, int]:
        """Number of conditions in each state, zeros included."""
        counts: dict[LedgerState, int] = dict.fromkeys(get_args(LedgerState), 0)
        with sqlite_errors(self.path):
            for state, count in self._database.execute("SELECT state, count(*) FROM conditions GROUP BY state"):
                counts[state] = count
        return counts

    def digest(self) -> str:
        """Hash of the whole contents, independent of SQLite's file layout."""
        return sha256_json([list(vars(entry).values()) for entry in self.entries()])

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refuse(self, what: str) -> None:
        raise CorruptionError(f"{self.path}: {what}", "resume from a checkpoint: it rewinds the ledger")
