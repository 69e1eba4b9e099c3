"""Fuzzing: the metadata CSV, its paths, action tables, and stored Parquet tables."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateplay_rl.conditions.actions import read_action_table
from stateplay_rl.conditions.codes import RowRejected
from stateplay_rl.conditions.paths import resolve_inside
from stateplay_rl.conditions.source import COLUMNS, read_clips, read_csv
from stateplay_rl.errors import CorruptionError
from stateplay_rl.stores import tables
from stateplay_rl.stores.groups import GROUP_COLUMNS
from stateplay_rl.stores.scores import ScoreRow, ScoreTable
from tests.conditions.clip_factory import arena_config, make_clip_folder, table
from tests.fuzz.damage import altered, damaged, fuzzed, json_values, reads_or_says_why

CSV = (
    ",".join(COLUMNS) + "\r\na/video.mp4,a/actions.parquet,normal,\"NPC, quoted \"\"text\"\"\",Guard,Defense\r\n"
    "b/video.mp4,b/actions.parquet,Macro_fail,été\nzwei,Rush,Attack\r\n"
).encode()  # fmt: skip
FIELDS = st.text(max_size=30) | st.sampled_from(["../../etc/passwd", "/etc/passwd", "C:\\x", "a\0b", "\ufeff"])


def parquet(columns: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


ACTIONS = parquet(table(0))
STORED = tables.table_bytes({"a": "str", "b": "int?"}, [{"a": "text", "b": 1}, {"a": "é", "b": None}])
SCORES = tables.table_bytes(
    {"group_id": "str", "candidate": "int", "score": "float?", "status": "str", "reason": "str?", "judge_id": "str",
     "protocol_sha256": "str", "request_id": "str?"},
    [vars(ScoreRow("g", k, 50.0, "scored", None, "j", "c" * 64, None)) for k in range(2)],
)  # fmt: skip


@fuzzed
@given(data=damaged(CSV))
def test_csv_bytes(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "m.csv"
    file.write_bytes(data)
    reads_or_says_why(lambda: read_csv(file))


@fuzzed
@given(rows=st.lists(st.lists(FIELDS, min_size=1, max_size=8), max_size=4))
def test_csv_fields_and_their_paths(tmp_path: Path, rows: list[list[str]]) -> None:
    """Whatever a row says, no path leaves the data root."""
    import csv

    root = tmp_path / "data"
    root.mkdir(exist_ok=True)
    (tmp_path / "outside").write_text("secret")
    file = root / "m.csv"
    with file.open("w", encoding="utf-8", errors="replace", newline="") as text:
        writer = csv.writer(text, quoting=csv.QUOTE_ALL)
        writer.writerow(COLUMNS)
        writer.writerows([field.replace("\0", "") for field in row] for row in rows)
    source: Any = reads_or_says_why(lambda: read_csv(file))
    for row in source.rows if source else ():
        for path in (row.video, row.actions):
            try:
                found = resolve_inside(source.data_root, path or "", "video")
            except RowRejected:
                continue
            assert found.is_relative_to(source.data_root)


@fuzzed
@given(data=damaged(ACTIONS))
def test_action_table_bytes(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "actions.parquet"
    file.write_bytes(data)
    with contextlib.suppress(RowRejected):
        read_action_table(file, arena_config().clip)


COLUMN = st.one_of(
    st.lists(st.none() | st.floats() | st.integers(-(2**40), 2**40), min_size=20, max_size=20),
    st.lists(st.text(max_size=4), min_size=20, max_size=20),
    st.lists(st.booleans(), min_size=20, max_size=20),
    st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=20, max_size=20),
)


@fuzzed
@given(changes=st.dictionaries(st.sampled_from([*table(0), "extra"]), COLUMN | st.none(), min_size=1, max_size=3))
def test_action_table_values(tmp_path: Path, changes: dict[str, list[Any] | None]) -> None:
    columns: dict[str, Any] = {**table(0), **changes}
    try:
        data = parquet({name: values for name, values in columns.items() if values is not None})
    except (pa.ArrowException, OverflowError):
        return  # a column that Parquet cannot hold reaches nobody
    file = tmp_path / "actions.parquet"
    file.write_bytes(data)
    try:
        found = read_action_table(file, arena_config().clip)
    except RowRejected:
        return
    assert set(found.raw_RK.flatten().tolist()) <= {0.0, 1.0}


@fuzzed
@given(data=damaged(STORED))
def test_stored_table_bytes(tmp_path: Path, data: bytes) -> None:
    source = tmp_path / "t.parquet"
    reads_or_says_why(lambda: tables.read_table(source, {"a": "str", "b": "int?"}, data))
    reads_or_says_why(lambda: tables.read_table(source, GROUP_COLUMNS, data))
    reads_or_says_why(lambda: tables.read_numeric(source, data))


@fuzzed
@given(data=damaged(SCORES))
def test_score_table_bytes(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "scores.parquet"
    file.write_bytes(data)
    found: Any = reads_or_says_why(lambda: ScoreTable.read(file))
    for group in found or ():
        assert all(score is None or 0 <= score <= 100 for score in group.scores)


@fuzzed
@given(value=altered({"distribution": "normal", "prompt": "NPC", "strategy": "s", "category": "c"}) | json_values)
def test_clip_metadata(tmp_path: Path, value: Any) -> None:
    import json

    folder = tmp_path / "clips"
    if not folder.exists():
        make_clip_folder(folder, "clip", 0)
    (folder / "clip" / "metadata.json").write_text(json.dumps(value), encoding="utf-8", errors="surrogatepass")
    reads_or_says_why(lambda: read_clips(folder))


def test_text_that_is_not_utf8_in_a_stored_table(tmp_path: Path) -> None:
    """Found by fuzzing: Arrow reads such text without a word, and Python fails when it is turned into a string."""
    array = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    schema = tables.arrow_schema({"a": "str"})
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([array], schema=schema), buffer)
    with pytest.raises(CorruptionError, match="not readable"):
        tables.read_table(tmp_path / "t.parquet", {"a": "str"}, buffer.getvalue())
