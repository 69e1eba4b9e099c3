"""Readers of a database whose writer was killed in a transaction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stateplay_rl.errors import CorruptionError
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.sqlite import connect

# A tiny page cache makes SQLite write pages before the commit, as a large transaction does.
KILLED = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size=2")
database.execute("BEGIN IMMEDIATE")
database.execute("UPDATE conditions SET state = 'reserved', batch = 1 WHERE batch IS NULL")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path, [f"c{i}" for i in range(3000)]) as ledger:
        ledger.reserve(0, 2)
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert journal(path).stat().st_size > 0
    return path


def journal(path: Path) -> Path:
    return path.with_name(path.name + "-journal")


def test_a_reader_sees_the_state_before_the_killed_transaction(killed: Path) -> None:
    before = killed.read_bytes(), journal(killed).read_bytes()
    with Ledger.open(killed, read_only=True) as ledger:
        counts = ledger.counts()
        assert [entry.condition_id for entry in ledger.members(0)] == ["c0", "c1"]
    assert (counts["reserved"], counts["unseen"]) == (2, 2998)
    # The reader left everything to the writer.
    assert (killed.read_bytes(), journal(killed).read_bytes()) == before


def test_the_writer_rolls_back_and_goes_on(killed: Path) -> None:
    with Ledger.open(killed, read_only=True) as reader:
        digest = reader.digest()
    with Ledger.open(killed) as ledger:
        assert ledger.digest() == digest
        assert ledger.reserve(1, 1) == ("c2",)
    assert not journal(killed).exists()


def test_such_a_copy_cannot_be_written(killed: Path) -> None:
    database = connect(killed, read_only=True)
    with pytest.raises(Exception, match=r"readonly|read-only|query_only"):
        database.execute("DELETE FROM conditions")
    database.close()


def test_damage_is_not_mistaken_for_a_journal(killed: Path) -> None:
    killed.write_bytes(b"not a database" * 1000)
    journal(killed).unlink()
    with pytest.raises(CorruptionError):
        Ledger.open(killed, read_only=True)
