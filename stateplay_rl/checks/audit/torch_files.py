"""Torch files (archives and old pickles), opened with `weights_only` so that no code of a file ever runs."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stateplay_rl.checks.audit.headers import TensorFacts

LARGEST_LEGACY_PICKLE_BYTES = 2 * 2**30
"""Old pickles have no archive: they are read whole, so larger ones are refused."""

Listed = tuple[str, tuple[TensorFacts, ...], tuple[str, ...]]


def list_tensors(path: Path, size: int) -> Listed:
    """A torch file's tensors, listed on the meta device.

    Args:
        path: a file that begins like a torch archive or a pickle.
        size: its bytes.

    Returns:
        state (`sound`, `truncated`, `refused`, `not_weights`), tensors, problems. Never raises for content.
    """
    import pickle

    import torch
    from safetensors import SafetensorError

    from stateplay_rl.worlds.native.weight_files import DAMAGED_TORCH_FILE

    archive = zipfile.is_zipfile(path)
    with path.open("rb") as file:
        cut_off = file.read(2) == b"PK" and not archive
    if cut_off:
        text = "a damaged torch file (an archive without its directory: bytes are missing at the end)"
        return "truncated", (), (text,)
    if not archive and size > LARGEST_LEGACY_PICKLE_BYTES:
        text = f"an old-style pickle of {size} bytes: too large to read whole; save it as safetensors"
        return "refused", (), (text,)
    try:
        content: Any = torch.load(path, map_location="meta", weights_only=True, mmap=archive)
    except pickle.UnpicklingError as error:
        text = f"refused: the pickle is damaged or needs code to open ({_pickle_detail(str(error))})"
        return "refused", (), (text + "; save it as safetensors",)
    except (*DAMAGED_TORCH_FILE, SafetensorError) as error:
        detail = (str(error).splitlines() or [type(error).__name__])[0][:200]
        return "truncated", (), (f"a damaged torch file ({detail})",)
    tensors = tuple(
        TensorFacts(name, _dtype_code(tensor.dtype), tuple(tensor.shape), path)
        for name, tensor in _flatten(content, "")
    )
    if not tensors:
        return "not_weights", (), ("a torch file without a tensor",)
    return "sound", tensors, ()


def _pickle_detail(message: str) -> str:
    """What torch's restricted unpickler stumbled over, without its advice to trust the file."""
    match = re.search(r"GLOBAL (\S+)", message)
    if match:
        return f"it calls {match.group(1)}"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return next((line[:200] for line in lines if "nsupported" in line), "not loadable with weights_only")


def load_tensors(path: Path) -> dict[str, Any]:
    """The tensors themselves, on the CPU, mapped where the file is an archive.

    Args:
        path: a file that `list_tensors` found sound.
    """
    import torch

    content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    return dict(_flatten(content, ""))


def _flatten(content: object, prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted name and tensor of nested dictionaries; counters and settings beside them are passed over."""
    import torch

    if isinstance(content, torch.Tensor):
        yield prefix.removesuffix("."), content
    elif isinstance(content, dict):
        for name, value in content.items():
            yield from _flatten(value, f"{prefix}{name}.")


def _dtype_code(dtype: Any) -> str:
    """Safetensors' code of a torch dtype: `bfloat16` -> `BF16`."""
    name = str(dtype).removeprefix("torch.")
    for long, short in (("bfloat", "BF"), ("float", "F"), ("uint", "U"), ("int", "I"), ("complex", "C")):
        if name.startswith(long):
            return (short + name.removeprefix(long)).upper()
    return name.upper()
