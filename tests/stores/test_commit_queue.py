"""Changes from many threads: all on the disk, each failing alone."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from stateplay_rl.errors import CorruptionError
from stateplay_rl.stores.commit_queue import CommitQueue


def rows(path: Path) -> list[int]:
    with sqlite3.connect(path) as database:
        return [row[0] for row in database.execute("SELECT n FROM t ORDER BY n")]


def test_changes_of_many_threads_are_all_stored(tmp_path: Path) -> None:
    queue = CommitQueue(tmp_path / "t.sqlite")
    queue.run(lambda database: database.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)"))

    def work(first: int) -> None:
        for n in range(first, first + 25):
            queue.run(lambda database, n=n: database.execute("INSERT INTO t VALUES (?)", (n,)))

    threads = [threading.Thread(target=work, args=(25 * k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(tmp_path / "t.sqlite") == list(range(200))
    queue.close()


def test_a_change_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    queue = CommitQueue(tmp_path / "t.sqlite")
    queue.run(lambda database: database.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)"))
    gate = threading.Event()
    errors: list[BaseException] = []

    def insert(n: int) -> None:
        try:
            queue.run(lambda database: database.execute("INSERT INTO t VALUES (?)", (n,)))
        except sqlite3.IntegrityError as error:
            errors.append(error)

    holder = threading.Thread(target=lambda: queue.run(lambda database: gate.wait(10)))
    holder.start()
    threads = [threading.Thread(target=insert, args=(n,)) for n in (1, 2, 2, 3)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in [holder, *threads]:
        thread.join()
    assert rows(tmp_path / "t.sqlite") == [1, 2, 3]
    assert len(errors) == 1
    queue.close()
    queue.close()
    with pytest.raises(ValueError, match="closed"):
        queue.run(lambda database: None)


def test_no_database_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "t.sqlite").write_text("<html>" * 1000)
    with pytest.raises(CorruptionError):
        CommitQueue(tmp_path / "t.sqlite")
