"""What a checkpoint path holds: one file, shards with an index, or a folder; each file recognised by content.

A bad file is a finding with a sentence, not an exception: the audit's task is to say what is wrong with it.
Nothing here opens a file for writing, and nothing runs code from a file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from stateplay_rl.checks.audit.headers import LENGTH_BYTES, TensorFacts, read_header
from stateplay_rl.checks.audit.torch_files import list_tensors
from stateplay_rl.errors import InputError
from stateplay_rl.stores.foreign import parse_json

HEAD_BYTES = 4096
LARGEST_INDEX_BYTES = 100_000_000
LFS_HEAD = b"version https://git-lfs.github.com/spec/"
HTML_HEADS = (b"<!doctype html", b"<html", b"<?xml", b"<head", b"<body")
COMPONENT_FOLDERS = ("transformer", "vae", "text_encoder")
"""Where a diffusers-layout folder keeps the weights of its parts."""

WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")
_SHARD = re.compile(r"^(?P<stem>.+)-(?P<index>\d{5})-of-(?P<total>\d{5})(?P<suffix>\.\w+)$")


@dataclass(frozen=True)
class FileFacts:
    """One file: where, how large, what it is, and its tensors.

    Args:
        kind: `safetensors`, `torch_pickle`, `lfs_pointer`, `html`, `empty`, `shard_index` or `unknown`.
        state: `sound`, `truncated`, `extra_bytes`, `bad_header`, `refused` or `not_weights`.
        problems: sentences for people; empty when sound.
    """

    path: Path
    realpath: Path
    size: int
    mtime_ns: int
    kind: str
    state: str
    tensors: tuple[TensorFacts, ...] = ()
    problems: tuple[str, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def modified_utc(self) -> str:
        """Time of the last change, ISO 8601, UTC."""
        return datetime.fromtimestamp(self.mtime_ns / 1e9, UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True)
class Checkpoint:
    """All files behind one path, and problems between them (missing shards, keys in two files)."""

    path: Path
    layout: str
    files: tuple[FileFacts, ...]
    problems: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[TensorFacts, ...]:
        """Every listed tensor of every file."""
        return tuple(tensor for file in self.files for tensor in file.tensors)

    @property
    def all_problems(self) -> tuple[str, ...]:
        """Problems of the files, each with its file's name, and between files."""
        of_files = tuple(f"{file.path.name}: {text}" for file in self.files for text in file.problems)
        return of_files + self.problems


def open_checkpoint(path: Path) -> Checkpoint:
    """Recognise a checkpoint.

    Args:
        path: a weight file, an index (`*.index.json`), or a folder of weight files.

    Raises:
        InputError: the path does not exist, is not readable, or is a folder without weight files.
    """
    if not path.exists():
        raise InputError(f"checkpoint not found: {path}", "check the path")
    if path.is_dir():
        return _open_folder(path)
    if path.name.endswith(".index.json"):
        files, problems = _open_index(path)
        return Checkpoint(path, "sharded", files, problems)
    return Checkpoint(path, "file", (file_facts(path),), shard_siblings([path]))


def open_together(paths: Sequence[Path]) -> tuple[Checkpoint, ...]:
    """Checkpoints that are given side by side: a shard's siblings may be among the other paths.

    Raises:
        InputError: as `open_checkpoint`.
    """
    opened = [open_checkpoint(path) for path in paths]
    loose = [checkpoint for checkpoint in opened if checkpoint.layout == "file"]
    missing = shard_siblings([checkpoint.path for checkpoint in loose])
    result = []
    for checkpoint in opened:
        if checkpoint.layout == "file":
            # What is still missing is said once, by the first of them.
            checkpoint = replace(checkpoint, problems=missing if checkpoint is loose[0] else ())
        result.append(checkpoint)
    return tuple(result)


def file_facts(path: Path) -> FileFacts:
    """Facts of one file, recognised by its first bytes (never by its suffix).

    Raises:
        InputError: the file cannot be read, or is no ordinary file.
    """
    if not path.is_file():
        raise InputError(f"not an ordinary file: {path}", "give a weight file or a folder")
    try:
        stat = path.stat()
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "check the file's permissions") from error
    found = _recognise(path, head, stat.st_size)
    return FileFacts(path, path.resolve(), stat.st_size, stat.st_mtime_ns, **vars(found))


@dataclass(frozen=True)
class _Recognised:
    kind: str
    state: str
    tensors: tuple[TensorFacts, ...] = ()
    problems: tuple[str, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()


def _recognise(path: Path, head: bytes, size: int) -> _Recognised:
    if size == 0:
        return _not_weights("empty", "the file is empty (0 bytes)")
    if head.startswith(LFS_HEAD):
        return _not_weights("lfs_pointer", _lfs_message(head))
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(HTML_HEADS):
        text = "an HTML page saved as a weight file (a download page or an error message): download it again"
        return _not_weights("html", text)
    if head[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{":
        header = read_header(path)
        metadata = tuple(sorted(header.metadata.items()))
        return _Recognised("safetensors", header.state, header.tensors, header.problems, metadata)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"\x80")):
        state, tensors, problems = list_tensors(path, size)
        return _Recognised("torch_pickle", state, tensors, problems)
    return _not_weights("unknown", _unknown_message(head, size))


def _not_weights(kind: str, problem: str) -> _Recognised:
    return _Recognised(kind, "not_weights", (), (problem,))


def _lfs_message(head: bytes) -> str:
    match = re.search(rb"^size (\d+)$", head, re.MULTILINE)
    size = f" of {int(match.group(1))} bytes" if match else ""
    return f"a Git LFS pointer, not the file{size} that it stands for: run `git lfs pull`"


def _unknown_message(head: bytes, size: int) -> str:
    if not head.strip(b"\x00"):
        return f"{size} bytes that begin with zeros only: an interrupted download or a sparse file"
    text = _as_text(head)
    if text is not None:
        return (
            f"neither safetensors nor a torch archive, but text that begins with {text[:60]!r}: an error message "
            "saved by a download?"
        )
    claimed = int.from_bytes(head[:LENGTH_BYTES], "little")
    return (
        f"neither safetensors nor a torch archive (first bytes {head[:LENGTH_BYTES].hex(' ')}; "
        f"as safetensors the header would claim {claimed} bytes in a file of {size})"
    )


def _as_text(head: bytes) -> str | None:
    """The first line of a file that begins with readable text; None for binary content."""
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        # The head may end in the middle of a character.
        if error.start < len(head) - 3:
            return None
        text = head[: error.start].decode("utf-8")
    return text.strip().splitlines()[0] if text.strip() and all(c.isprintable() or c.isspace() for c in text) else None


def _open_folder(folder: Path) -> Checkpoint:
    parts = [folder, *(folder / name for name in COMPONENT_FOLDERS if (folder / name).is_dir())]
    names = [path for part in parts for path in sorted(part.iterdir()) if path.is_file()]
    files: list[FileFacts] = []
    problems: list[str] = []
    indexed: set[Path] = set()
    for index in (p for p in names if p.name.endswith(".index.json")):
        found, faults = _open_index(index)
        files += found
        problems += faults
        indexed |= {file.path for file in found}
    loose = [p for p in names if p.suffix in WEIGHT_SUFFIXES and p not in indexed]
    files += [file_facts(p) for p in loose]
    problems += shard_siblings(loose)
    if not files:
        raise InputError(f"no weight file in {folder}", f"expected files ending in {', '.join(WEIGHT_SUFFIXES)}")
    return Checkpoint(folder, "sharded" if indexed else "folder", tuple(files), tuple(problems))


def _open_index(index: Path) -> tuple[tuple[FileFacts, ...], tuple[str, ...]]:
    """The shards of a `*.index.json`, held against the map of names in it."""
    facts = file_facts(index)
    weight_map = _weight_map(index, facts.size)
    if isinstance(weight_map, str):
        return (FileFacts(*_base(facts), "shard_index", "bad_header", (), (weight_map,)),), ()
    files = [FileFacts(*_base(facts), "shard_index", "sound")]
    problems: list[str] = []
    for name in sorted(set(weight_map.values())):
        listed = {key for key, shard in weight_map.items() if shard == name}
        if PurePosixPath(name).name != name or "\\" in name:
            problems.append(f"{index.name}: shard name {name!r} leaves the folder: refused")
            continue
        shard = index.parent / name
        if not shard.is_file():
            problems.append(f"shard {name} is missing ({len(listed)} of {len(weight_map)} tensors)")
            continue
        file = file_facts(shard)
        files.append(file)
        held = {tensor.name for tensor in file.tensors}
        if file.state == "sound" and held != listed:
            problems.append(
                f"{name}: {len(listed - held)} tensors of the index are not in it, "
                f"{len(held - listed)} in it are not in the index"
            )
    return tuple(files), tuple(problems)


def _base(facts: FileFacts) -> tuple[Path, Path, int, int]:
    return facts.path, facts.realpath, facts.size, facts.mtime_ns


def _weight_map(index: Path, size: int) -> dict[str, str] | str:
    if size > LARGEST_INDEX_BYTES:
        return f"an index of {size} bytes: refused"
    try:
        content = parse_json(index.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return f"the index is not JSON ({error})"
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        return "the index has no `weight_map` of names to files"
    return weight_map


def shard_siblings(paths: Sequence[Path]) -> tuple[str, ...]:
    """Shards named `x-00001-of-00003`: which of their number are not among `paths`."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for path in paths:
        match = _SHARD.match(path.name)
        if match:
            key = (match["stem"], match["total"], match["suffix"])
            sets.setdefault(key, set()).add(int(match["index"]))
    problems = []
    for (stem, total, suffix), present in sorted(sets.items()):
        missing = sorted(set(range(1, int(total) + 1)) - present) if int(total) <= 10_000 else []
        if missing:
            shown = ", ".join(f"{stem}-{n:05d}-of-{total}{suffix}" for n in missing[:5])
            problems.append(f"{len(missing)} of {int(total)} shards not given: {shown}; give the folder or all shards")
    return tuple(problems)
