"""The files behind a path that may be a file, an index of shards, or a folder. No torch here."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from stateplay_rl.errors import InputError
from stateplay_rl.stores.foreign import parse_json

INDEX_SUFFIX = ".index.json"


def shards_of(path: Path) -> tuple[Path, ...]:
    """The files behind a path: the file itself, the shards of an index, or the weight files of a folder.

    A folder with an index means that index's shards (a base model's folder holds other `.pth` files too);
    without one, its safetensors files.

    Raises:
        InputError: nothing there, a missing shard, a shard name that leaves the folder, two indices, or a
            folder without safetensors.
    """
    if path.is_dir():
        return _in_folder(path)
    if not path.is_file():
        raise InputError(
            f"weight file not found: {path}",
            "check the path; paths in a world file start at that file",
        )
    return _in_index(path) if path.name.endswith(INDEX_SUFFIX) else (path,)


def _in_folder(folder: Path) -> tuple[Path, ...]:
    indices = sorted(p for p in folder.iterdir() if p.name.endswith(INDEX_SUFFIX))
    if len(indices) > 1:
        raise InputError(f"{folder} holds {len(indices)} indices of shards", f"name one of them: {indices[0]}")
    if indices:
        return _in_index(indices[0])
    files = tuple(sorted(p for p in folder.iterdir() if p.suffix == ".safetensors" and p.is_file()))
    if not files:
        raise InputError(f"no safetensors file in {folder}", "name the weight file itself")
    return files


def _in_index(index: Path) -> tuple[Path, ...]:
    try:
        weight_map = parse_json(index.read_bytes())["weight_map"]
        names = sorted({str(name) for name in weight_map.values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index} is no index of shards ({error})", f"run sprl audit-ckpt {index}") from error
    for name in names:
        if PurePosixPath(name).name != name or "\\" in name:
            raise InputError(f"{index}: shard name {name!r} leaves the folder", "this index is not to be trusted")
        if not (index.parent / name).is_file():
            raise InputError(f"{index}: shard {name} is missing", "fetch it again, then run sprl audit-ckpt")
    return tuple(index.parent / name for name in names)
