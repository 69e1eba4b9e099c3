"""Parquet tables: exact columns, no NaN, nothing read that claims too much."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stateplay_rl.errors import CorruptionError
from stateplay_rl.stores import tables

COLUMNS = {"name": "str", "points": "float?", "edges": "int[][]"}
ROW = {"name": "a", "points": 1.5, "edges": [[0, 1]]}


def test_round_trip_and_equal_bytes(tmp_path: Path) -> None:
    rows = [ROW, ROW | {"points": None, "edges": []}]
    assert tables.table_bytes(COLUMNS, rows) == tables.table_bytes(COLUMNS, rows)
    tables.write_table(tmp_path / "t", COLUMNS, rows)
    assert tables.read_table(tmp_path / "t", COLUMNS) == rows
    tables.write_table(tmp_path / "empty", COLUMNS, [])
    assert tables.read_table(tmp_path / "empty", COLUMNS) == []


@pytest.mark.parametrize(
    "row",
    [{"name": "a"}, ROW | {"more": 1}, ROW | {"name": None}, ROW | {"points": float("nan")}],
)
def test_bad_rows_are_not_written(row: dict) -> None:
    with pytest.raises(ValueError, match="row 0"):
        tables.table_bytes(COLUMNS, [row])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": ["a"], "points": [1.0]}, "lacks column 'edges'"),
        ({"name": [1], "points": [1.0], "edges": [[[0]]]}, "column 'name' is int64, not string"),
        ({"name": ["a"], "points": [1.0], "edges": [[[0]]], "x": [1]}, r"unknown columns \['x'\]"),
        ({"name": ["a"], "points": [float("inf")], "edges": [[[0]]]}, "row 0: column 'points' is inf"),
        (
            {"name": ["a", None], "points": [1.0, 1.0], "edges": [[[0]], [[0]]]},
            "row 1: column 'name' is null",
        ),
    ],
)
def test_bad_tables_name_the_column(tmp_path: Path, table: dict, message: str) -> None:
    pq.write_table(pa.table(table), tmp_path / "t")
    with pytest.raises(CorruptionError, match=message):
        tables.read_table(tmp_path / "t", COLUMNS)


def test_a_table_that_claims_too_much_is_not_read(tmp_path: Path, monkeypatch) -> None:
    """Run-length encoding makes a megabyte of nothing a few hundred bytes."""
    pq.write_table(pa.table({"n": pa.array([0] * 100_000)}), tmp_path / "t", use_dictionary=False)
    monkeypatch.setattr(tables, "_MAX_TABLE_BYTES", 1000)
    with pytest.raises(CorruptionError, match="claims"):
        tables.read_table(tmp_path / "t", {"n": "int"})


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"\xff" * 40 + b"PAR1"])
def test_damaged_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(CorruptionError, match="not readable Parquet"):
        tables.read_table(tmp_path / "t", COLUMNS)
    with pytest.raises(CorruptionError, match="not readable Parquet"):
        tables.read_numeric(tmp_path / "t", data)


def test_a_numeric_table_holds_numbers(tmp_path: Path) -> None:
    data = tables.table_bytes({"a": "int", "b": "float", "c": "str"}, [{"a": 1, "b": 0.5, "c": "x"}])
    with pytest.raises(CorruptionError, match="column 'c' is string"):
        tables.read_numeric(tmp_path / "t", data)
