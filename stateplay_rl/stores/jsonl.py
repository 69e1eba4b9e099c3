"""Append-only line logs: one JSON object a line, on the disk before `append` returns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stateplay_rl.errors import CorruptionError
from stateplay_rl.stores.atomic import disk_errors, fsync_folder
from stateplay_rl.stores.foreign import parse_json


class LineLog:
    """Writer and reader of one log file.

    A killed append may leave half a last line. `truncate_to` the byte count that a checkpoint recorded
    removes it, and with it the lines of work that will be done again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def size(self) -> int:
        """Bytes on disk; 0 when there is no file."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def append(self, record: Mapping[str, Any]) -> int:
        """Add a line and fsync it; returns the new size in bytes.

        Raises:
            ValueError: NaN or infinity in the record: a missing value is null.
            OutsideError: disk full or read-only; the log is cut back to its last whole line.
        """
        line = log_line(record).encode()
        before = self.size
        is_new = not self.path.exists()
        with disk_errors(self.path, len(line)):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                try:
                    self._write_all(file.fileno(), line)
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), before)
                    raise
            if is_new:
                fsync_folder(self.path.parent)
        return before + len(line)

    @staticmethod
    def _write_all(descriptor: int, data: bytes) -> None:
        while data:
            data = data[os.write(descriptor, data) :]

    def truncate_to(self, size: int) -> None:
        """Cut the log to `size` bytes, the end of a whole line.

        Raises:
            CorruptionError: the log is shorter than that, or `size` is not the end of a line.
        """
        if size == 0 and not self.path.exists():
            return
        hint = "restore the file from a copy, or resume from an earlier checkpoint"
        if self.size < size:
            raise CorruptionError(f"{self.path} has {self.size} bytes, the checkpoint recorded {size}", hint)
        with disk_errors(self.path), self.path.open("r+b") as file:
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    raise CorruptionError(f"{self.path}: byte {size} is not the end of a line", hint)
            file.truncate(size)
            os.fsync(file.fileno())

    def read(self) -> list[dict[str, Any]]:
        """All records; an absent file has none.

        Raises:
            CorruptionError: a line that is no JSON object, named by its number (the first is 1).
        """
        return list(read_lines(self.path)) if self.path.is_file() else []


def log_line(record: Mapping[str, Any]) -> str:
    """A record as its line; NaN raises ValueError."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(", ", ": ")) + "\n"


def read_lines(path: Path, *, allow_open_end: bool = False) -> Iterator[dict[str, Any]]:
    """Records of a log in order.

    Args:
        path: the file.
        allow_open_end: end before a last line without newline, which is being written right now.

    Raises:
        CorruptionError: a damaged line, named by its number.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if allow_open_end and not line.endswith(b"\n"):
                return
            try:
                record = parse_json(line)
            except ValueError as error:
                what = "is cut off" if not line.endswith(b"\n") else f"is not valid JSON ({error})"
                raise CorruptionError(f"{path}: line {number} {what}", "resume the run, or cut the line") from error
            if not isinstance(record, dict) or not line.endswith(b"\n"):
                raise CorruptionError(f"{path}: line {number} is not a whole JSON object", "resume the run")
            yield record
