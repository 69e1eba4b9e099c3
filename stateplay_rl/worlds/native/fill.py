"""A module on the meta device, filled tensor by tensor from weight files.

Building on the meta device takes no memory and draws no random numbers. Each tensor is cast and copied to its
device as it comes from the file, so that the host holds the model once and one tensor more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native.prefixes import bare_names
from stateplay_rl.worlds.native.shards import shards_of
from stateplay_rl.worlds.native.weight_files import StoredTensor, list_tensors, stream
from stateplay_rl.worlds.native.weights import require_equal_keys

DtypeOf = Callable[[str, torch.dtype], torch.dtype]
"""(our name, stored dtype) -> dtype to keep."""

Rename = Callable[[str], str | None]


def stored_under_our_names(paths: Sequence[Path], rename: Rename) -> dict[str, StoredTensor]:
    """Our name -> stored tensor, of files, indices or folders; wrappers' prefixes are stripped first.

    Raises:
        InputError: a file is missing, names collide, or a name that `rename` does not know.
        CorruptionError: a file is not readable.
    """
    source = ", ".join(str(path) for path in paths)
    stored = {tensor.name: tensor for tensor in list_tensors([file for path in paths for file in shards_of(path)])}
    bare = bare_names(stored)
    if bare.collisions:
        raise InputError(
            f"{source}: {len(bare.collisions)} names are equal without their prefixes, first {bare.collisions[0]}",
            f"inspect it with: sprl audit-ckpt {paths[0]}",
        )
    renamed: dict[str, StoredTensor] = {}
    unknown = []
    for name, original in bare.original.items():
        ours = rename(name)
        if ours is None:
            unknown.append(original)
        elif ours in renamed:
            raise InputError(f"{source}: two keys map to {ours}, the second one is {original}", "fix the key map")
        else:
            renamed[ours] = stored[original]
    if unknown:
        raise InputError(
            f"{source}: {len(unknown)} keys that this model does not know, first " + ", ".join(sorted(unknown)[:5]),
            "translate them with key_map in the world file, or inspect the file with sprl audit-ckpt",
        )
    return renamed


def fill_exactly(
    module: nn.Module,
    stored: Mapping[str, StoredTensor],
    source: str,
    *,
    dtype_of: DtypeOf,
    device: torch.device,
    optional: Iterable[str] = (),
) -> None:
    """Give every parameter and buffer of a meta module its stored value.

    Args:
        module: built on the meta device.
        stored: tensors under the module's own names; the two sets of names must be the same.
        source: the files, for messages.
        dtype_of: the dtype that a tensor is kept in.
        device: where the values go.
        optional: names that may be left out; the caller fills them.

    Raises:
        InputError: naming missing, unexpected or wrongly shaped keys, before any value is read.
        CorruptionError: a file changed or is not readable.
    """
    own = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    require_equal_keys(own, {name: t.shape for name, t in stored.items()}, source, optional)
    places = tensor_places(module)
    by_file: dict[Path, dict[str, str]] = defaultdict(dict)
    for ours, tensor in stored.items():
        by_file[tensor.file][tensor.name] = ours
    for file, names in by_file.items():
        for original, value in stream(file, names):
            ours = names[original]
            dtype = dtype_of(ours, value.dtype)
            # Always a copy: a view of a mapped file would keep it open, and change with it.
            kept = torch.empty(own[ours], dtype=dtype, device=device)
            kept.copy_(value.reshape(own[ours]))
            put(places[ours], kept)


def put(places: Sequence[tuple[nn.Module, str]], value: Tensor) -> None:
    """Place one tensor wherever the model refers to it (tied weights have several places)."""
    parameter = nn.Parameter(value, requires_grad=False) if value.is_floating_point() else None
    for module, name in places:
        if name in module._parameters:
            module._parameters[name] = parameter
        else:
            module._buffers[name] = value


def require_filled(module: nn.Module, source: str) -> None:
    """Raise unless nothing is left on the meta device: such a parameter would have no value at all."""
    left = [n for n, p in (*module.named_parameters(), *module.named_buffers()) if p.is_meta]
    if left:
        raise InputError(f"{source}: {len(left)} parameters got no value, first {left[0]}", "report this")


def tensor_places(module: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """State-dict name -> every (module, attribute) that holds that very tensor."""
    by_identity: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    names: dict[str, int] = {}
    for prefix, part in module.named_modules():
        for leaf, value in (*part._parameters.items(), *part._buffers.items()):
            if value is None:
                continue
            names[f"{prefix}.{leaf}" if prefix else leaf] = id(value)
            by_identity[id(value)].append((part, leaf))
    return {name: by_identity[key] for name, key in names.items()}
