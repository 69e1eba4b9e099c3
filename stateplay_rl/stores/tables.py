"""Parquet files with a fixed schema: exact columns, no NaN, bounded memory, messages that name the column."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stateplay_rl.errors import CorruptionError
from stateplay_rl.stores.atomic import write_bytes

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_TABLE_BYTES = 2 << 30
_HINT = "restore the file from a copy, or write the directory again"

# Column type names used by the stores, so that their schemas need no pyarrow at import.
Columns = Mapping[str, str]


def arrow_schema(columns: Columns) -> pa.Schema:
    """Arrow schema of ``{"name": "type"}``; a trailing ``?`` allows null, ``[]`` is a list."""
    import pyarrow as pa

    simple = {
        "str": pa.string(),
        "int": pa.int64(),
        "int32": pa.int32(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "str[]": pa.list_(pa.string()),
        "int[]": pa.list_(pa.int64()),
        "float[]": pa.list_(pa.float64()),
        "int[][]": pa.list_(pa.list_(pa.int64())),
    }
    return pa.schema([pa.field(n, simple[t.rstrip("?")], nullable=t.endswith("?")) for n, t in columns.items()])


def table_bytes(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A Parquet file of `rows` as bytes; the same rows give the same bytes on one pyarrow version.

    Raises:
        ValueError: a row with missing or extra columns, a null where none is allowed, or NaN.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number, row in enumerate(rows):
        if row.keys() != columns.keys():
            raise ValueError(f"row {number} has columns {sorted(row)}, not {sorted(columns)}")
        for name, value in row.items():
            if value is None and not columns[name].endswith("?"):
                raise ValueError(f"row {number}: column {name!r} must not be null")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"row {number}: column {name!r} is {value}; a missing value is null")
    table = pa.Table.from_pylist(list(rows), schema=arrow_schema(columns))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def write_table(path: Path, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as Parquet atomically; returns the sha256. Raises as `table_bytes` and `write_bytes` do."""
    return write_bytes(path, table_bytes(columns, rows))


def read_table(source: Path, columns: Columns, data: bytes | None = None) -> list[dict[str, Any]]:
    """Rows of a Parquet file, all columns present, of the right type, no NaN.

    Args:
        source: the file, also for messages.
        columns: expected columns.
        data: contents when they have been read already.

    Raises:
        CorruptionError: unreadable, claims too much memory, wrong columns, null or NaN where none may be.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(data) if data is not None else source)
        # A few kilobytes can claim terabytes: look before reading.
        claimed = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
        if claimed > _MAX_TABLE_BYTES:
            raise CorruptionError(f"{source} claims {claimed} bytes uncompressed, at most {_MAX_TABLE_BYTES}", _HINT)
        _check_columns(source, file.schema_arrow, columns)
        rows: list[dict[str, Any]] = file.read(columns=list(columns)).to_pylist()
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        # ValueError: text that is not UTF-8.
        if isinstance(error, CorruptionError):
            raise
        raise CorruptionError(f"{source} is not readable Parquet: {error!s:.200}", _HINT) from error
    for number, row in enumerate(rows):
        for name, value in row.items():
            if value is None and not columns[name].endswith("?"):
                raise CorruptionError(f"{source}, row {number}: column {name!r} is null", _HINT)
            if isinstance(value, float) and not math.isfinite(value):
                raise CorruptionError(f"{source}, row {number}: column {name!r} is {value}", _HINT)
    return rows


def _check_columns(source: Path, found: pa.Schema, columns: Columns) -> None:
    expected = arrow_schema(columns)
    for field in expected:
        if field.name not in found.names:
            raise CorruptionError(f"{source} lacks column {field.name!r}", _HINT)
        if not found.field(field.name).type.equals(field.type):
            actual = found.field(field.name).type
            raise CorruptionError(f"{source}: column {field.name!r} is {actual}, not {field.type}", _HINT)
    extra = [name for name in found.names if name not in columns]
    if extra:
        raise CorruptionError(f"{source} has unknown columns {extra}", _HINT)


def read_numeric(source: Path, data: bytes) -> dict[str, np.ndarray]:
    """Columns of a small table of numbers, in the order of the file.

    Raises:
        CorruptionError: unreadable, or a column that holds no numbers.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(io.BytesIO(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError(f"{source} is not readable Parquet: {error!s:.200}", _HINT) from error
    columns: dict[str, str] = {}
    for field in schema:
        if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)):
            raise CorruptionError(f"{source}: column {field.name!r} is {field.type}, not a number", _HINT)
        columns[field.name] = "int" if pa.types.is_integer(field.type) else "float"
    rows = read_table(source, columns, data)
    return {name: np.array([row[name] for row in rows]) for name in columns}
