"""Safetensors headers, read and checked without loading a tensor.

The file format: 8 bytes little-endian header length, a JSON header, then the tensors back to back. Memory is
bounded by the largest header that the safetensors library itself accepts, whatever the file claims.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeGuard

LENGTH_BYTES = 8
LARGEST_HEADER_BYTES = 100_000_000

LARGEST_SIZE = 2**64
"""Sizes and offsets are unsigned 64-bit numbers in the format."""
LARGEST_RANK = 64

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class TensorFacts:
    """One tensor as a header or an archive lists it.

    Args:
        name: key in the file.
        dtype: safetensors' code (`F32`, `BF16`, ...).
        shape: sizes, outermost first.
        file: the file that holds it.
        begin, end: byte range in the file; both 0 where the format has none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int = 0
    end: int = 0

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """A header's tensors, or why it could not be read.

    Args:
        problems: sentences for people; empty when the file is sound.
        state: `sound`, `truncated`, `extra_bytes`, `bad_header` or `not_safetensors`.
    """

    state: str
    tensors: tuple[TensorFacts, ...] = ()
    problems: tuple[str, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    header_bytes: int = 0


def read_header(path: Path) -> Header:
    """Header of a safetensors file, checked against the file's size.

    Args:
        path: a readable file.

    Returns:
        The tensors with the state of the file. Never raises for content: a bad file is a finding.
    """
    size = path.stat().st_size
    if size < LENGTH_BYTES:
        return Header("not_safetensors", problems=(f"{size} bytes: too short for a safetensors file",))
    with path.open("rb") as file:
        claimed = int.from_bytes(file.read(LENGTH_BYTES), "little")
        first = file.read(1)
        if first != b"{":
            return Header("not_safetensors", problems=("no JSON header where safetensors has one",))
        if claimed > LARGEST_HEADER_BYTES:
            return Header(
                "bad_header",
                problems=(
                    f"the header claims {claimed} bytes; the format allows {LARGEST_HEADER_BYTES} "
                    f"and the file has {size}",
                ),
                header_bytes=claimed,
            )
        if claimed > size - LENGTH_BYTES:
            missing = claimed - (size - LENGTH_BYTES)
            return Header("truncated", problems=(f"truncated inside the header: {missing} of its bytes are missing",))
        raw = first + file.read(claimed - 1)
    return _parse(raw, path, size - LENGTH_BYTES - claimed)


def _parse(raw: bytes, path: Path, data_bytes: int) -> Header:
    repeated: list[str] = []

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(items)
        if len(found) < len(items):
            repeated.extend(name for name, count in Counter(n for n, _ in items).items() if count > 1)
        return found

    try:
        decoded = json.loads(raw.decode("utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        return Header("bad_header", problems=(f"the header is not JSON ({error})",), header_bytes=len(raw))
    if repeated:
        return Header("bad_header", problems=(f"names given twice in the header: {repeated[:5]}",))
    metadata = decoded.pop("__metadata__", {})
    tensors: list[TensorFacts] = []
    problems: list[str] = []
    for name, entry in decoded.items():
        tensor = _tensor(name, entry, path)
        if isinstance(tensor, str):
            problems.append(tensor)
        else:
            tensors.append(tensor)
    if problems:
        return Header("bad_header", tuple(tensors), tuple(problems[:20]), header_bytes=len(raw))
    texts = {str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}
    state, problems = _layout(tensors, data_bytes)
    start = LENGTH_BYTES + len(raw)
    placed = tuple(replace(t, begin=start + t.begin, end=start + t.end) for t in tensors)
    return Header(state, placed, tuple(problems), texts, len(raw))


def _tensor(name: str, entry: object, path: Path) -> TensorFacts | str:
    """The entry as facts, or what is wrong with it."""
    if not isinstance(entry, dict):
        return f"{name}: the header entry is not an object"
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        return f"{name}: unknown dtype {dtype!r}"
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return f"{name}: bad shape {shape!r:.200} or offsets {offsets!r:.200}"
    facts = TensorFacts(name, dtype, tuple(shape), path, offsets[0], offsets[1])
    needed = (facts.count * DTYPE_BITS[dtype] + 7) // 8
    if needed != facts.end - facts.begin:
        return f"{name}: {dtype} {list(shape)} needs {needed} bytes, its range has {facts.end - facts.begin}"
    return facts


def _sizes(value: object) -> TypeGuard[list[int]]:
    # Bounded, so that their product can be written out: Python prints no number of more than 4300 digits.
    if not isinstance(value, list) or len(value) > LARGEST_RANK:
        return False
    return all(type(v) is int and 0 <= v < LARGEST_SIZE for v in value)


def _layout(tensors: list[TensorFacts], data_bytes: int) -> tuple[str, list[str]]:
    """Ranges must be back to back and end where the file ends."""
    position = 0
    for tensor in sorted(tensors, key=lambda t: (t.begin, t.end)):
        if tensor.begin != position:
            kind = "overlap" if tensor.begin < position else "hole"
            return "bad_header", [f"{tensor.name}: {kind} of {abs(tensor.begin - position)} bytes before it"]
        position = tensor.end
    if data_bytes < position:
        missing = position - data_bytes
        first = min((t for t in tensors if t.end > data_bytes), key=lambda t: t.begin)
        return "truncated", [f"truncated: {missing} bytes are missing at the end, from {first.name} on"]
    if data_bytes > position:
        return "extra_bytes", [f"{data_bytes - position} extra bytes after the last tensor"]
    return "sound", []
