"""Weight files: read, compare with a module key by key, cast, write.

"Loads without error" proves nothing about a partial checkpoint, so nothing here is lenient: every missing,
unexpected or wrongly shaped key is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores.atomic import write_bytes

Shape = tuple[int, ...]

NAMES_SHOWN = 5
"""Keys named in a message before it says "and N more"."""


def read_safetensors(paths: Sequence[Path]) -> dict[str, Tensor]:
    """All tensors of one or several (sharded) safetensors files.

    Raises:
        InputError: a file is missing, or two files hold the same key.
        CorruptionError: a file is not readable as safetensors.
    """
    tensors: dict[str, Tensor] = {}
    for path in paths:
        if not path.is_file():
            raise InputError(
                f"weight file not found: {path}",
                "check the path; paths in a world file start at that file",
            )
        try:
            with safe_open(str(path), framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 (a safetensors handle is not a mapping)
                    if key in tensors:
                        raise InputError(f"{path}: key {key!r} is in an earlier shard too", "give each shard once")
                    tensors[key] = file.get_tensor(key)
        except SafetensorError as error:
            raise CorruptionError(
                f"{path} is not a readable safetensors file ({error})",
                f"inspect it with: sprl audit-ckpt {path}",
            ) from error
    return tensors


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors atomically; the bytes depend on names, values and metadata only.

    Raises:
        OutsideError: the disk is full or read-only.
    """
    ordered = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    write_bytes(path, save(ordered, metadata=dict(sorted(metadata.items()))))


def load_exactly(module: nn.Module, weights: Mapping[str, Tensor], source: str, optional: Iterable[str] = ()) -> None:
    """Copy `weights` into a module's parameters and buffers; the two sets of names must be the same.

    Args:
        module: the receiver; values are cast to the dtype that it already has.
        weights: tensors under the module's own key names.
        source: the file, for messages.
        optional: names that `weights` may leave out.

    Raises:
        InputError: naming the missing, unexpected or wrongly shaped keys.
    """
    own = module.state_dict()
    require_equal_keys(
        {name: tuple(value.shape) for name, value in own.items()},
        {name: tuple(value.shape) for name, value in weights.items()},
        source,
        optional,
    )
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value.reshape(own[name].shape))


def require_equal_keys(
    own: Mapping[str, Shape], given: Mapping[str, Shape], source: str, optional: Iterable[str] = ()
) -> None:
    """Compare names and shapes; a single number may be stored as [] or as [1].

    Raises:
        InputError: naming the missing, unexpected or wrongly shaped keys.
    """
    missing = sorted(set(own) - set(given) - set(optional))
    unexpected = sorted(set(given) - set(own))
    shapes = sorted(
        f"{name} {list(given[name])} instead of {list(own[name])}"
        for name in set(own) & set(given)
        if not same_shape(own[name], given[name])
    )
    problems = [
        f"{len(names)} {kind}: {_some(names)}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if names
    ]
    if problems:
        raise InputError(
            f"{source} does not fit the model; keys " + "; ".join(problems),
            "compare file and preset with: sprl audit-ckpt FILE --world WORLD",
        )


def same_shape(one: Shape, other: Shape) -> bool:
    """Equal, or a single number on both sides: the coupling gate is [1] here and may be [] in a checkpoint."""
    return one == other or {one, other} == {(), (1,)}


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"
