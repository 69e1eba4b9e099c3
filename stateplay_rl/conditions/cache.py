"""Outcomes of rows already examined, so that a killed build goes on where it stopped.

A cache, not a record: a line that does not read back, or whose source or files changed, is work to be done
again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from stateplay_rl.conditions.artefacts import is_intact
from stateplay_rl.conditions.examine import Outcome
from stateplay_rl.conditions.source import SourceRow
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import disk_errors, sha256_json
from stateplay_rl.stores.foreign import parse_json

_ROWS_FILE = "rows.jsonl"


def row_key(row: SourceRow, data_root: Path) -> str:
    """Hash of what the source says about a row and of size and time of the files it names."""
    stamps = []
    for name in (row.video, row.actions, row.first_frame):
        try:
            info = None if name is None else os.stat(data_root / name.replace("\\", "/"))
        except (OSError, ValueError):
            info = None
        stamps.append(None if info is None else [info.st_size, info.st_mtime_ns])
    return sha256_json([asdict(row), stamps])


class RowCache:
    """Append-only file of outcomes below an unfinished conditions directory; use as a context manager."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._path = out / layout.WORK_FOLDER / _ROWS_FILE
        self._file: BinaryIO | None = None

    def load(self, keys: Mapping[int, str], rows: Sequence[SourceRow]) -> dict[int, Outcome]:
        """Outcomes by row number that still hold: same source, and all files intact.

        Args:
            keys: present key by row number.
            rows: the rows that are wanted.
        """
        if not self._path.is_file():
            return {}
        wanted = {row.row for row in rows}
        found: dict[int, Outcome] = {}
        with self._path.open("rb") as file:
            for line in file:
                outcome = _parsed(line)
                if outcome is not None and outcome.row in wanted and outcome.key == keys[outcome.row]:
                    found[outcome.row] = outcome
        return {row: outcome for row, outcome in found.items() if self._holds(outcome)}

    def _holds(self, outcome: Outcome) -> bool:
        return outcome.condition is None or is_intact(self._out, outcome.condition.files)

    def __enter__(self) -> RowCache:
        with disk_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
            # A kill may have left half a line: the next one starts on a line of its own.
            self._file.write(b"\n")
        return self

    def append(self, outcome: Outcome) -> None:
        """Store an outcome."""
        assert self._file is not None, "RowCache is used as a context manager"
        with disk_errors(self._path):
            self._file.write(json.dumps(outcome.to_json(), separators=(",", ":")).encode() + b"\n")
            self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with disk_errors(self._path):
                self._file.close()

    def remove(self) -> None:
        """Remove the work folder; the directory is about to be sealed."""
        shutil.rmtree(self._path.parent, ignore_errors=True)


def _parsed(line: bytes) -> Outcome | None:
    try:
        return Outcome.from_json(parse_json(line))
    except (ValueError, TypeError, KeyError):
        return None
