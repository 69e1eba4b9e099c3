"""Line logs: durable lines, truncation to a checkpoint, the bad line named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stateplay_rl.errors import CorruptionError, OutsideError
from stateplay_rl.stores.jsonl import LineLog, read_lines


def test_lines_are_appended_and_read(tmp_path: Path) -> None:
    log = LineLog(tmp_path / "run" / "metrics.jsonl")
    assert log.read() == []
    assert log.size == 0
    first = log.append({"batch": 0, "text": "é\n"})
    assert first == log.size
    log.append({"batch": 1, "loss": None})
    assert log.read() == [{"batch": 0, "text": "é\n"}, {"batch": 1, "loss": None}]


def test_truncation_removes_later_lines_and_half_a_line(tmp_path: Path) -> None:
    log = LineLog(tmp_path / "m.jsonl")
    size = log.append({"batch": 0})
    log.append({"batch": 1})
    with log.path.open("ab") as file:
        file.write(b'{"batch": 2, "lo')
    with pytest.raises(CorruptionError, match="line 3 is cut off"):
        log.read()
    assert len(list(read_lines(log.path, allow_open_end=True))) == 2
    log.truncate_to(size)
    assert log.read() == [{"batch": 0}]
    log.truncate_to(size)
    log.truncate_to(0)
    assert log.read() == []


def test_truncation_to_an_impossible_place_is_refused(tmp_path: Path) -> None:
    log = LineLog(tmp_path / "m.jsonl")
    size = log.append({"batch": 0})
    with pytest.raises(CorruptionError, match=f"has {size} bytes, the checkpoint recorded 999"):
        log.truncate_to(999)
    with pytest.raises(CorruptionError, match="byte 3 is not the end of a line"):
        log.truncate_to(3)
    assert log.size == size
    LineLog(tmp_path / "none.jsonl").truncate_to(0)
    with pytest.raises(CorruptionError, match="has 0 bytes"):
        LineLog(tmp_path / "none.jsonl").truncate_to(5)


@pytest.mark.parametrize("line", [b"nonsense\n", b"[1]\n", b'{"a": \n', b"\xff\xfe\n"])
def test_the_bad_line_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "m.jsonl"
    file.write_bytes(b'{"batch": 0}\n' + line + b'{"batch": 2}\n')
    with pytest.raises(CorruptionError, match=r"m\.jsonl: line 2 "):
        LineLog(file).read()


def test_nan_is_refused(tmp_path: Path) -> None:
    log = LineLog(tmp_path / "m.jsonl")
    with pytest.raises(ValueError, match="JSON"):
        log.append({"loss": float("nan")})
    assert log.size == 0


def test_a_full_disk_cuts_back_to_whole_lines(tmp_path: Path, monkeypatch) -> None:
    log = LineLog(tmp_path / "m.jsonl")
    log.append({"batch": 0})
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) > 5:
            return real(descriptor, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OutsideError, match="bytes needed"):
        log.append({"batch": 1})
    monkeypatch.undo()
    assert log.read() == [{"batch": 0}]
