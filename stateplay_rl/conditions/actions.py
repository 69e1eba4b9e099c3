"""A clip's action table: buttons and true game state out of a Parquet file that may be hostile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stateplay_rl.conditions.codes import RowRejected, warning
from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.config.conditions import ClipRules

FRAME_ID = "frame_id"
STATES = ("p1_hp", "p2_hp", "p1_meter", "p2_meter", "macro_ready", "timer")
# A number takes at most 8 bytes uncompressed; the rest is page headers, dictionaries, statistics.
_BYTES_PER_VALUE = 16
_BYTES_PER_COLUMN = 2**16


@dataclass(frozen=True)
class ActionTable:
    """Buttons and states of one clip.

    Args:
        frame_ids: int64 [R], counting up by 1.
        raw_RK: float32 [R, 11] in {0, 1}, as written (row 0 of each window carries the presses).
        states: int64 or float64 [R] by state column; those columns only that the file holds.
        warnings: oddities that were tolerated.
    """

    frame_ids: NDArray[np.int64]
    raw_RK: NDArray[np.float32]
    states: Mapping[str, NDArray[Any]]
    warnings: tuple[str, ...]


def read_action_table(path: Path, rules: ClipRules) -> ActionTable:
    """Read and check an action table.

    Sizes are checked on the file's metadata before any data page is read, so that a small file which claims
    to hold gigabytes costs nothing.

    Raises:
        RowRejected: with the reason.
    """
    if path.stat().st_size > rules.max_action_file_bytes:
        raise RowRejected("actions_too_large", f"{path.stat().st_size} bytes in the file")
    try:
        with pq.ParquetFile(
            path, thrift_string_size_limit=2**20, thrift_container_size_limit=2**16, memory_map=False
        ) as file:
            _check_claims(file.metadata, rules)
            _check_columns(file.schema_arrow)
            wanted = [name for name in file.schema_arrow.names if name in (FRAME_ID, *STATES, *BUTTONS)]
            table = file.read(columns=wanted, use_threads=False)
            names = list(file.schema_arrow.names)
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        raise RowRejected("unreadable_actions", str(error).splitlines()[0][:200]) from error
    return _checked(table, names)


def _check_claims(metadata: Any, rules: ClipRules) -> None:
    if metadata.num_columns > rules.max_action_columns or metadata.num_rows > rules.max_action_rows:
        claim = f"{metadata.num_rows} rows, {metadata.num_columns} columns"
        raise RowRejected("actions_too_large", f"the file claims {claim}")
    if metadata.num_row_groups > max(metadata.num_rows, 1):
        raise RowRejected("actions_too_large", f"{metadata.num_row_groups} row groups for {metadata.num_rows} rows")
    allowed = metadata.num_rows * _BYTES_PER_VALUE + _BYTES_PER_COLUMN * max(metadata.num_row_groups, 1)
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            numeric = chunk.physical_type not in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
            if numeric and chunk.total_uncompressed_size > allowed:
                claim = f"column {chunk.path_in_schema} claims {chunk.total_uncompressed_size} bytes"
                raise RowRejected("actions_too_large", claim)


def _check_columns(schema: Any) -> None:
    counts = Counter(schema.names)
    needed = (FRAME_ID, *STATES, *BUTTONS)
    twice = [name for name in needed if counts[name] > 1]
    if twice:
        raise RowRejected("duplicate_column", ", ".join(twice))
    missing = [name for name in BUTTONS if not counts[name]]
    if missing:
        raise RowRejected("missing_button_column", ", ".join(missing))
    for name in needed:
        if counts[name]:
            kind = schema.field(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
                raise RowRejected("column_type", f"{name} is {kind}")


def _checked(table: Any, names: Sequence[str]) -> ActionTable:
    if table.num_rows == 0:
        raise RowRejected("zero_rows", "the table has no rows")
    columns = {name: _numbers(table.column(name), name) for name in table.column_names}
    raw_RK = np.stack([columns[name] for name in BUTTONS], axis=1)
    wrong = (raw_RK != 0) & (raw_RK != 1)
    if wrong.any():
        row, button = np.argwhere(wrong)[0]
        found = f"{BUTTONS[button]} is {raw_RK[row, button]:g} in row {row}, {int(wrong.sum())} such values"
        raise RowRejected("button_values", found)
    warnings = []
    frame_ids, plain = _frame_ids(columns.get(FRAME_ID), table.num_rows)
    if not plain:
        warnings.append(warning("frame_id_column"))
    extra = len([name for name in names if name not in (FRAME_ID, *STATES, *BUTTONS)])
    if extra:
        warnings.append(warning("extra_columns", extra))
    absent = len([name for name in STATES if name not in columns])
    if absent:
        warnings.append(warning("missing_state_columns", absent))
    states = {name: _compact(columns[name]) for name in STATES if name in columns}
    return ActionTable(frame_ids, raw_RK.astype(np.float32), states, tuple(warnings))


def _numbers(column: Any, name: str) -> NDArray[np.float64]:
    if column.null_count:
        raise RowRejected("not_a_number", f"{name} has {column.null_count} missing values")
    values = np.asarray(column.to_numpy(), dtype=np.float64)
    bad = ~np.isfinite(values)
    if bad.any():
        raise RowRejected("not_a_number", f"{name} has {int(bad.sum())} NaN or infinite values")
    return values


def _frame_ids(values: NDArray[np.float64] | None, rows: int) -> tuple[NDArray[np.int64], bool]:
    if values is None:
        return np.arange(rows, dtype=np.int64), False
    if values.size > 1 and not np.all(np.diff(values) == 1):
        row = int(np.argmax(np.diff(values) != 1)) + 1
        raise RowRejected("frame_ids", f"{values[row]:g} follows {values[row - 1]:g} in row {row}")
    if values[0] != int(values[0]) or abs(values[0]) > 2**40:
        raise RowRejected("frame_ids", f"the first id is {values[0]:g}")
    return values.astype(np.int64), bool(values[0] == 0)


def _compact(values: NDArray[np.float64]) -> NDArray[Any]:
    whole = np.all(values == np.round(values)) and np.all(np.abs(values) < 2**31)
    return values.astype(np.int32) if whole else values
