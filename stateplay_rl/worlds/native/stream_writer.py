"""Safetensors files written tensor by tensor: the host never holds a whole file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from stateplay_rl.stores.atomic import HashingWriter, disk_errors, require_space

Entries = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Name -> dtype and shape, in the order in which the values come."""

_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def write_streamed(
    path: Path, entries: Entries, values: Iterable[Tensor], metadata: Mapping[str, str] | None = None
) -> str:
    """Write a safetensors file atomically; returns its sha256.

    Args:
        path: final name.
        entries: what comes, in order.
        values: the tensors, on any device, of these dtypes and as many elements.
        metadata: of the header.

    Raises:
        OutsideError: the disk is full or read-only.
    """
    header = _header(entries, metadata or {})
    require_space(path, len(header) + sum(_bytes(dtype, shape) for dtype, shape in entries.values()))
    with disk_errors(path), HashingWriter(path) as writer:
        writer.write(header)
        for (name, (dtype, shape)), value in zip(entries.items(), values, strict=True):
            assert value.dtype == dtype, f"{name} came as {value.dtype}"
            assert value.nbytes == _bytes(dtype, shape), f"{name} came as {list(value.shape)}"
            writer.write(_raw(value.detach().cpu()))
    return writer.sha256


def _header(entries: Entries, metadata: Mapping[str, str]) -> bytes:
    """The safetensors header of tensors that follow in this order."""
    content: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, (dtype, shape) in entries.items():
        end = position + _bytes(dtype, shape)
        content[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(content, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)  # the format aligns its data to 8 bytes
    return len(text).to_bytes(8, "little") + text


def _bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count * dtype.itemsize


def _raw(value: Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
