"""Fuzzing: safetensors headers and torch files (.pth). Nothing is run, nothing is allocated on a claim."""

from __future__ import annotations

import io
import json
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from stateplay_rl.checks.audit.headers import read_header
from stateplay_rl.checks.audit.torch_files import list_tensors as list_torch
from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.worlds.native import weight_files
from stateplay_rl.worlds.native.weights import read_safetensors
from tests.fuzz.damage import altered, damaged, deep, fuzzed, json_values, reads_or_says_why

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
SOUND = save(TENSORS, {"format": "pt"})
HEADER = json.loads(SOUND[8 : 8 + int.from_bytes(SOUND[:8], "little")])
DATA = SOUND[8 + int.from_bytes(SOUND[:8], "little") :]


def torch_file(content: object, *, archive: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=archive)
    return buffer.getvalue()


ARCHIVE = torch_file({"state": TENSORS, "step": 3})
PICKLE = torch_file({"state": TENSORS, "step": 3}, archive=False)


def with_header(header: bytes, claimed: int | None = None) -> bytes:
    return (len(header) if claimed is None else claimed).to_bytes(8, "little") + header + DATA


def read_all(file: Path) -> None:
    """Every reader of safetensors here."""
    header = read_header(file)
    assert header.state == "sound" or header.problems
    reads_or_says_why(lambda: read_safetensors([file]))
    listed: Any = reads_or_says_why(lambda: weight_files.list_tensors([file]))
    if listed:
        reads_or_says_why(lambda: dict(weight_files.stream(file, [tensor.name for tensor in listed])))


@fuzzed
@given(data=damaged(SOUND))
def test_safetensors_bytes(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(data)
    read_all(file)


@fuzzed
@given(header=altered(HEADER) | json_values)
def test_safetensors_headers(tmp_path: Path, header: Any) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(with_header(json.dumps(header).encode("utf-8", "surrogatepass")))
    read_all(file)


@fuzzed
@given(claimed=st.integers(0, 2**64 - 1))
def test_a_claimed_length_costs_no_memory(tmp_path: Path, claimed: int) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(with_header(json.dumps(HEADER).encode(), claimed))
    tracemalloc.start()
    try:
        read_all(file)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sound", [ARCHIVE, PICKLE], ids=["archive", "pickle"])
def test_torch_bytes(tmp_path: Path, sound: bytes) -> None:
    file = tmp_path / "w.pth"

    @fuzzed
    @given(data=damaged(sound))
    def check(data: bytes) -> None:
        file.write_bytes(data)
        state, tensors, problems = list_torch(file, len(data))
        assert tensors if state == "sound" else problems
        reads_or_says_why(lambda: weight_files.list_tensors([file]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check()


NINES = b"9" * 4000
CASES = {
    "a type that is a list": b'{"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}}',
    "a type that is an object": b'{"a":{"dtype":{},"shape":[1],"data_offsets":[0,4]}}',
    "a shape too large to print": b'{"a":{"dtype":"F32","shape":[%s,%s],"data_offsets":[0,4]}}' % (NINES, NINES),
    "nested without end": deep('{"a":'),
    "offsets too large to print": b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,4]}}' % NINES,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_headers_that_were_found(tmp_path: Path, case: str) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(with_header(CASES[case]))
    assert read_header(file).state == "bad_header"
    with pytest.raises(CorruptionError):
        read_safetensors([file])


@pytest.mark.parametrize("sound", [ARCHIVE, PICKLE], ids=["archive", "pickle"])
def test_torch_files_cut_anywhere(tmp_path: Path, sound: bytes) -> None:
    """Found by fuzzing with many inputs: an old pickle that ends inside a number was a `struct.error`."""
    file = tmp_path / "w.pth"
    for end in range(0, len(sound) - 1, max(len(sound) // 150, 1)):
        file.write_bytes(sound[:end])
        state, _, problems = list_torch(file, end)
        assert (state != "sound", bool(problems)) == (True, True), end
        with pytest.raises(InputError):
            weight_files.list_tensors([file])


class Harmful:
    """A pickle that would create a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("place", ["whole", "value", "key of a dictionary", "inside a list"])
def test_no_pickle_runs_code(tmp_path: Path, archive: bool, place: str) -> None:
    harm = Harmful(tmp_path / "harmed")
    content = {
        "whole": harm,
        "value": {"a": torch.ones(1), "b": harm},
        "key of a dictionary": {harm: torch.ones(1)},
        "inside a list": {"a": [torch.ones(1), harm]},
    }[place]
    file = tmp_path / "w.pth"
    file.write_bytes(torch_file(content, archive=archive))
    assert list_torch(file, file.stat().st_size)[0] == "refused"
    with pytest.raises(InputError, match="could run code"):
        weight_files.list_tensors([file])
    assert not (tmp_path / "harmed").exists()
