"""A policy back into the training repository's format: the SFT checkpoint with the trained tensors replaced.

Every tensor keeps the name (wrappers' prefixes too), dtype, shape and bits that it has in the checkpoint; only
those that the policy holds change. Streamed: the host holds one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stateplay_rl.errors import InputError
from stateplay_rl.stores.refusal import refuse_overlap
from stateplay_rl.worlds.native.keymap import Translations, any_to_ours
from stateplay_rl.worlds.native.prefixes import bare_names
from stateplay_rl.worlds.native.shards import shards_of
from stateplay_rl.worlds.native.stream_writer import write_streamed
from stateplay_rl.worlds.native.weight_files import StoredTensor, list_tensors, stream
from stateplay_rl.worlds.native.weights import same_shape


@dataclass(frozen=True)
class ExportedCheckpoint:
    """What was written.

    Args:
        replaced: names in the file whose values come from the policy.
        added: names of the policy that the checkpoint does not hold (its base does), written at the end.
        rounded: of the replaced ones, those that the checkpoint stores in fewer bits than the policy.
    """

    path: Path
    sha256: str
    tensors: int
    replaced: tuple[str, ...]
    added: tuple[str, ...]
    rounded: tuple[str, ...]


def write_training_checkpoint(
    checkpoint: Sequence[Path],
    policy: Mapping[str, Tensor],
    out: Path,
    *,
    translations: Translations = (),
    metadata: Mapping[str, str] | None = None,
    keep_precision: bool = False,
) -> ExportedCheckpoint:
    """Write a checkpoint that the training repository loads as it loads its own.

    Args:
        checkpoint: the SFT checkpoint: files, an index or a folder; opened for reading only.
        policy: an exported policy, names as `export_policy` gives them.
        out: the safetensors file to write.
        translations: the world file's key map, as sorted pairs.
        metadata: of the new header.
        keep_precision: store replaced tensors as the policy holds them instead of in the checkpoint's dtype.

    Raises:
        InputError: a name of the policy that no model of this kind has, or another shape.
        OutputError: `out` overlaps with the checkpoint.
        OutsideError: the disk is full or read-only.
    """
    refuse_overlap(out, {}, list(checkpoint))
    files = [file for path in checkpoint for file in shards_of(path)]
    stored = {tensor.name: tensor for tensor in list_tensors(files)}
    values = _values_by_file_name(stored, policy, translations)
    entries: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name, tensor in stored.items():
        precise = name in values and keep_precision
        entries[name] = (values[name].dtype if precise else tensor.dtype, tensor.shape)
    added = tuple(sorted(name for name in values if name not in stored))
    entries |= {name: (values[name].dtype, tuple(values[name].shape)) for name in added}

    def in_order() -> Iterator[Tensor]:
        for file in files:
            for name, value in stream(file, [t.name for t in stored.values() if t.file == file]):
                new = values.get(name)
                yield value if new is None else new.to(entries[name][0])
        for name in added:
            yield values[name]

    sha256 = write_streamed(out, entries, in_order(), metadata)
    replaced = tuple(name for name in values if name in stored)
    rounded = tuple(n for n in replaced if entries[n][0].itemsize < values[n].dtype.itemsize)
    return ExportedCheckpoint(out, sha256, len(entries), replaced, added, rounded)


def _values_by_file_name(
    stored: Mapping[str, StoredTensor], policy: Mapping[str, Tensor], translations: Translations
) -> dict[str, Tensor]:
    """The policy under the names of the file; both sides meet under our names."""
    in_file = {any_to_ours(bare, translations): name for bare, name in bare_names(stored).original.items()}
    values: dict[str, Tensor] = {}
    for name, value in policy.items():
        ours = any_to_ours(name, translations)
        if ours is None:
            raise InputError(f"policy: no model of this kind has a parameter {name}", "give an exported policy")
        target = in_file.get(ours, name)
        if target in stored and not same_shape(stored[target].shape, tuple(value.shape)):
            raise InputError(
                f"policy: {name} is {list(value.shape)}, the checkpoint's {target} {list(stored[target].shape)}",
                "give a policy that was trained from this checkpoint",
            )
        values[target] = value.detach().cpu()
    return values
