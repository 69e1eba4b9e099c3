"""Weight files of any layout as one stream of named tensors: a file, an index with shards, or a folder.

A tensor is read, handed out and forgotten before the next one. Files are mapped, and mapped pages count as
memory of this process, so a file is opened anew after every `REOPEN_BYTES`: at most that much of it is
resident beside what the reader keeps.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stateplay_rl.errors import CorruptionError, InputError

PICKLE_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt")
REOPEN_BYTES = 1 << 29
DAMAGED_TORCH_FILE = (
    RuntimeError, ValueError, EOFError, OSError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError,
    AssertionError, struct.error,
)  # fmt: skip
"""What torch's reader raises for archives and pickles that are cut off or made up."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file, not read yet."""

    name: str
    shape: Shape
    dtype: torch.dtype
    file: Path


def list_tensors(paths: Sequence[Path]) -> tuple[StoredTensor, ...]:
    """Names, shapes and dtypes of all tensors of some files, without their values.

    Raises:
        InputError: a file is missing or holds more than tensors, or two files hold one name.
        CorruptionError: a file is not readable.
    """
    found: dict[str, StoredTensor] = {}
    for path in paths:
        for tensor in _list_torch(path) if path.suffix in PICKLE_SUFFIXES else _list_safetensors(path):
            if tensor.name in found:
                raise InputError(f"{path}: key {tensor.name!r} is in an earlier shard too", "give each shard once")
            found[tensor.name] = tensor
    return tuple(found.values())


def stream(path: Path, names: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    """The tensors `names` of one file, on the CPU, one at a time, in the file's order.

    A tensor is a view of the mapped file: copy what shall outlive the next step.

    Raises:
        CorruptionError: the file is not readable.
    """
    wanted = set(names)
    opened = _open_torch if path.suffix in PICKLE_SUFFIXES else _open_safetensors
    while wanted:
        read = 0
        for name, value in opened(path, wanted):
            yield name, value
            wanted.discard(name)
            read += value.nbytes
            if read >= REOPEN_BYTES:
                break
        else:
            assert not wanted, f"{path} lost {sorted(wanted)[:3]} while it was read"


def _list_safetensors(path: Path) -> Iterator[StoredTensor]:
    if not path.is_file():
        raise InputError(
            f"weight file not found: {path}",
            "check the path; paths in a world file start at that file",
        )
    with _safetensors(path) as file:
        for name in file.keys():  # noqa: SIM118 (a safetensors handle is not a mapping)
            part = file.get_slice(name)
            dtype = _TORCH_DTYPES.get(part.get_dtype())
            if dtype is None:
                raise InputError(f"{path}: {name} is stored as {part.get_dtype()}", "store it as a float torch knows")
            yield StoredTensor(name, tuple(part.get_shape()), dtype, path)


def _open_safetensors(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    with _safetensors(path) as file:
        for name in file.keys():  # noqa: SIM118
            if name in wanted:
                yield name, file.get_tensor(name)


def _safetensors(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise CorruptionError(
            f"{path} is not a readable safetensors file ({error})", f"inspect it with: sprl audit-ckpt {path}"
        ) from error


def _list_torch(path: Path) -> Iterator[StoredTensor]:
    for name, value in _torch_state(path).items():
        yield StoredTensor(name, tuple(value.shape), value.dtype, path)


def _open_torch(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    for name, value in _torch_state(path).items():
        if name in wanted:
            yield name, value


def _torch_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a torch file, mapped; nested dictionaries come out with dotted names."""
    if not path.is_file():
        raise InputError(
            f"weight file not found: {path}",
            "check the path; paths in a world file start at that file",
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} holds more than tensors, so opening it could run code", "convert it to safetensors"
        ) from error
    except DAMAGED_TORCH_FILE as error:
        raise CorruptionError(
            f"{path} is not a readable torch file ({error!s:.200})", "fetch the file again"
        ) from error
    state = dict(_flatten(content, ""))
    if not state:
        raise InputError(f"{path} is not a dictionary of tensors", "convert it to safetensors")
    return state


def _flatten(content: object, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors of nested dictionaries; counters and settings beside them are passed over."""
    if isinstance(content, Tensor):
        yield prefix.removesuffix("."), content
    elif isinstance(content, Mapping):
        for name, value in content.items():
            yield from _flatten(value, f"{prefix}{name}.")


_TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
