"""Safetensors headers: every kind of damage gets its name, and nothing is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from stateplay_rl.checks.audit.headers import LARGEST_HEADER_BYTES, read_header

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.ones(4, np.int64),
    "c": np.array(2, np.float32),
}


def raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def header_of(tmp_path: Path, content: bytes):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    return read_header(path)


def test_a_file_of_the_library_is_sound_and_offsets_point_at_the_values(tmp_path: Path) -> None:
    content = save(ARRAYS, {"note": "hello"})
    header = header_of(tmp_path, content)
    assert header.state == "sound"
    assert header.metadata == {"note": "hello"}
    assert {t.name: (t.dtype, t.shape) for t in header.tensors} == {
        "a": ("F32", (2, 3)),
        "b": ("I64", (4,)),
        "c": ("F32", ()),
    }
    tensor = next(t for t in header.tensors if t.name == "a")
    assert content[tensor.begin : tensor.end] == ARRAYS["a"].tobytes()


@pytest.mark.parametrize("missing", [1, 3, 24])
def test_truncated_data_names_the_bytes_and_the_tensor(tmp_path: Path, missing: int) -> None:
    header = header_of(tmp_path, save(ARRAYS)[:-missing])
    assert header.state == "truncated"
    assert f"{missing} bytes are missing" in header.problems[0]


@pytest.mark.parametrize("extra", [1, 17])
def test_extra_bytes_are_counted(tmp_path: Path, extra: int) -> None:
    header = header_of(tmp_path, save(ARRAYS) + b"\0" * extra)
    assert header.state == "extra_bytes"
    assert f"{extra} extra bytes" in header.problems[0]


def test_truncated_inside_the_header(tmp_path: Path) -> None:
    content = save(ARRAYS)
    length = int.from_bytes(content[:8], "little")
    header = header_of(tmp_path, content[: 8 + length - 10])
    assert header.state == "truncated"
    assert "10 of its bytes" in header.problems[0]


@pytest.mark.parametrize("claimed", [2**63, 2**64 - 1, LARGEST_HEADER_BYTES + 1])
def test_a_header_that_claims_too_much_is_not_read(tmp_path: Path, claimed: int) -> None:
    header = header_of(tmp_path, claimed.to_bytes(8, "little") + b'{"a": 1}')
    assert header.state == "bad_header"
    assert str(claimed) in header.problems[0]


@pytest.mark.parametrize(
    "header, word",
    [
        ({"a": entry("F32", [2], 0, 4)}, "needs 8 bytes"),
        ({"a": entry("F33", [2], 0, 8)}, "unknown dtype"),
        ({"a": entry("F32", [-2], 0, 8)}, "bad shape"),
        ({"a": entry("F32", [2], 8, 0)}, "bad shape"),
        ({"a": entry("F32", [True], 0, 4)}, "bad shape"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "bad shape"),
        ({"a": 3}, "not an object"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, "overlap of 4"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 12, 20)}, "hole of 4"),
        (b'{"a": 1, "a": 2}', "given twice"),
        (b'{"a": [[[', "not JSON"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", ""),
        (b'{"a": "\xff"}', "not JSON"),
    ],
)
def test_bad_headers_are_findings(tmp_path: Path, header: object, word: str) -> None:
    found = header_of(tmp_path, raw(header, b"\0" * 20))
    assert found.state == "bad_header"
    assert word in found.problems[0]


def test_huge_shapes_are_only_numbers(tmp_path: Path) -> None:
    found = header_of(tmp_path, raw({"a": entry("F32", [2**40, 2**40], 0, 8)}, b"\0" * 8))
    assert found.state == "bad_header"


def test_no_tensors_at_all_is_sound(tmp_path: Path) -> None:
    assert header_of(tmp_path, raw({})).state == "sound"


def test_short_and_foreign_files(tmp_path: Path) -> None:
    assert header_of(tmp_path, b"abc").state == "not_safetensors"
    assert header_of(tmp_path, b"\x10" + b"\0" * 30).state == "not_safetensors"
