"""One writer of a database for many threads: changes that arrive together share one commit.

Every change is on the disk when its call returns. A commit costs a flush of the disk; with thirty requests in flight
on a slow mount one flush a change would be the bottleneck.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from stateplay_rl.stores.sqlite import connect, transaction

Change = Callable[[sqlite3.Connection], Any]
Result = TypeVar("Result")
_MOST_AT_ONCE = 256
_BUSY_MILLISECONDS = 60_000


class CommitQueue:
    """A thread that owns the connection.

    Args:
        path: the database; its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[tuple[Change, Future[Any]] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, args=(opened,), name="requests-writer", daemon=True)
        self._thread.start()
        opened.result()

    def run(self, change: Callable[[sqlite3.Connection], Result]) -> Result:
        """Apply a change; returns its result once it is on the disk.

        Raises:
            Exception: what the change or the commit raised; nothing of it is stored then.
        """
        waiting: Future[Result] = Future()
        with self._closing:
            if self._closed:
                raise ValueError(f"{self._path} is closed")
            self._jobs.put((change, waiting))
        return waiting.result()

    def close(self) -> None:
        """Finish what is queued and close the database; a second call does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    def _work(self, opened: Future[None]) -> None:
        try:
            database = connect(self._path, read_only=False)
            # Other processes commit too, each for a moment.
            database.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            opened.set_exception(error)
            return
        opened.set_result(None)
        try:
            while (first := self._jobs.get()) is not None:
                batch = [first]
                last = False
                while len(batch) < _MOST_AT_ONCE and not self._jobs.empty():
                    job = self._jobs.get()
                    if job is None:
                        last = True
                        break
                    batch.append(job)
                self._commit(database, batch)
                if last:
                    return
        finally:
            database.close()

    def _commit(self, database: sqlite3.Connection, batch: list[tuple[Change, Future[Any]]]) -> None:
        """All changes in one transaction; when one fails, each in its own, so that it fails alone."""
        try:
            with transaction(database, self._path):
                results = [change(database) for change, _ in batch]
        except BaseException as error:  # noqa: BLE001 - raised again in the threads that wait
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            for job in batch:
                self._commit(database, [job])
            return
        for (_, waiting), result in zip(batch, results, strict=True):
            waiting.set_result(result)
