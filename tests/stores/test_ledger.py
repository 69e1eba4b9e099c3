"""The ledger: each condition once, in order; idempotent; rewinds to the same members."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from stateplay_rl.errors import CorruptionError, InputError, OutputError, OutsideError
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.sqlite import connect, sqlite_errors
from tests.stores.helpers import open_out

IDS = [f"c{i}" for i in range(10)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.sqlite", IDS)


def play(ledger: Ledger, batch: int, last: str = "trained") -> None:
    for condition_id in ledger.reserve(batch, 3):
        ledger.mark(batch, condition_id, "rolled", group_id=f"g-{condition_id}")
        ledger.mark(batch, condition_id, "scored")
        ledger.mark(batch, condition_id, last, reason="spread" if last == "gated" else None)  # type: ignore[arg-type]


def test_conditions_are_drawn_in_order_and_once(ledger: Ledger) -> None:
    assert ledger.reserve(0, 3) == ("c0", "c1", "c2")
    assert ledger.reserve(1, 4) == ("c3", "c4", "c5", "c6")
    assert ledger.counts() == {
        "unseen": 3, "reserved": 7, "rolled": 0, "scored": 0, "trained": 0, "gated": 0, "failed": 0,
    }  # fmt: skip
    assert ledger.batches() == 2
    with pytest.raises(InputError, match="needs 4 conditions, 3 are unseen"):
        ledger.reserve(2, 4)
    assert ledger.batches() == 2


def test_reserving_again_gives_the_same_members(ledger: Ledger) -> None:
    first = ledger.reserve(0, 3)
    before = ledger.digest()
    assert ledger.reserve(0, 3) == first
    assert ledger.digest() == before
    with pytest.raises(ValueError, match="reserved with 3 conditions, not 5"):
        ledger.reserve(0, 5)
    with pytest.raises(ValueError, match="the next is 1"):
        ledger.reserve(2, 1)


def test_marking_is_idempotent(ledger: Ledger) -> None:
    play(ledger, 0)
    before = ledger.digest()
    ledger.mark(0, "c0", "trained")
    assert ledger.digest() == before
    assert ledger.entry("c0").group_id == "g-c0"


def test_steps_that_do_not_exist_are_refused(ledger: Ledger) -> None:
    ledger.reserve(0, 3)
    with pytest.raises(CorruptionError, match="c0 is reserved, it cannot become trained"):
        ledger.mark(0, "c0", "trained")
    with pytest.raises(CorruptionError, match="is of batch None, not 0"):
        ledger.mark(0, "c9", "rolled")
    with pytest.raises(InputError, match="no condition 'zz'"):
        ledger.mark(0, "zz", "rolled")
    with pytest.raises(ValueError, match="needs a reason"):
        ledger.mark(0, "c0", "failed")
    with pytest.raises(ValueError, match="cannot be marked"):
        ledger.mark(0, "c0", "unseen")
    ledger.mark(0, "c0", "rolled", group_id="g")
    with pytest.raises(CorruptionError, match="has group g, not h"):
        ledger.mark(0, "c0", "rolled", group_id="h")
    ledger.mark(0, "c1", "failed", reason="video damaged")
    assert ledger.entry("c1").reason == "video damaged"


def test_rewinding_keeps_the_members(tmp_path: Path, ledger: Ledger) -> None:
    play(ledger, 0)
    after_first = ledger.digest()
    members = ledger.reserve(1, 3)
    play(ledger, 1, "gated")
    play(ledger, 2)
    end = ledger.digest()
    ledger.rewind_to(1)
    assert [e.condition_id for e in ledger.members(1)] == list(members)
    assert {e.state for e in ledger.members(1) + ledger.members(2)} == {"reserved"}
    assert {e.state for e in ledger.members(0)} == {"trained"}
    assert ledger.entry(members[0]).reason is None
    play(ledger, 1, "gated")
    play(ledger, 2)
    assert ledger.digest() == end != after_first


def test_a_kill_in_a_transaction_changes_nothing(tmp_path: Path, ledger: Ledger) -> None:
    """A second connection that dies in the middle leaves a hot journal; the next open rolls back."""
    before = ledger.digest()
    ledger.close()
    other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE conditions SET state = 'failed', batch = 0")
    other.close()
    assert Ledger.open(tmp_path / "ledger.sqlite").digest() == before


def test_durability_settings(tmp_path: Path, ledger: Ledger) -> None:
    database = connect(tmp_path / "ledger.sqlite", read_only=False)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert database.execute("PRAGMA synchronous").fetchone() == (2,)
    database.close()


def test_a_second_writer_is_told(tmp_path: Path, ledger: Ledger, monkeypatch) -> None:
    monkeypatch.setattr("stateplay_rl.stores.sqlite._BUSY_SECONDS", 0.05)
    with Ledger.open(tmp_path / "ledger.sqlite") as second:
        ledger._database.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutputError, match="in use"):
            second.reserve(0, 1)


def test_a_sealed_ledger_is_opened_immutable(tmp_path: Path) -> None:
    out = open_out(tmp_path / "run", schema="run")
    with Ledger.create(out.path / "ledger.sqlite", IDS) as created:
        play(created, 0)
        digest = created.digest()
    out.seal()
    (tmp_path / "run" / "ledger.sqlite").chmod(0o444)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as sealed:
        assert sealed.digest() == digest
        with pytest.raises(OutsideError, match="readonly"):
            sealed.reserve(1, 1)


@pytest.mark.parametrize("data", [b"", b"SQLite format 3\x00" + bytes(100), b"not a database" * 100])
def test_damage_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(data)
    with pytest.raises(CorruptionError, match=r"ledger\.sqlite"):
        Ledger.open(tmp_path / "ledger.sqlite")


def test_truncation_is_noticed(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "l", [f"c{i}" for i in range(2000)]).close()
    data = (tmp_path / "l").read_bytes()
    (tmp_path / "l").write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptionError):
        Ledger.open(tmp_path / "l").entries()


def test_missing_newer_and_existing_files(tmp_path: Path, ledger: Ledger) -> None:
    with pytest.raises(InputError, match="does not exist"):
        Ledger.open(tmp_path / "no.sqlite")
    with pytest.raises(ValueError, match="exists"):
        Ledger.create(tmp_path / "ledger.sqlite", IDS)
    with pytest.raises(ValueError, match="twice"):
        Ledger.create(tmp_path / "new.sqlite", ["a", "a"])
    assert not (tmp_path / "new.sqlite").exists()
    ledger._database.execute("UPDATE meta SET value = '7' WHERE key = 'version'")
    with pytest.raises(InputError, match="version 7, this sprl reads 1"):
        Ledger.open(tmp_path / "ledger.sqlite")


def test_a_full_disk_is_exit_5(tmp_path: Path, ledger: Ledger) -> None:
    pages = ledger._database.execute("PRAGMA page_count").fetchone()[0]
    ledger._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OutsideError, match="full"), sqlite_errors(ledger.path):
        ledger._database.executemany("INSERT INTO meta VALUES (?, ?)", [(str(i), "x" * 4000) for i in range(99)])
