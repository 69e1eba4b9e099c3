"""The manifest of a sealed directory: its record, reading, checking, and finding inputs by hash."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stateplay_rl.errors import CorruptionError, InputError, UnsealedError
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_bytes, sha256_file
from stateplay_rl.stores.foreign import checked, parse_json, parse_object, read_object

_LOST = "restore it, or start over with --overwrite"


@dataclass(frozen=True)
class FileRef:
    """A file of the directory: size in bytes and sha256."""

    size: int
    sha256: str


@dataclass(frozen=True)
class InputRef:
    """An input: sha256 of its manifest (or of the file itself), its path, its schema's name.

    `path` is relative to the directory that the manifest describes, so that a moved tree stays whole.
    `sha256` is None for a directory without a manifest: foreign data, or a run that is still open.
    """

    sha256: str | None
    path: str
    schema_name: str | None


@dataclass(frozen=True)
class Manifest:
    """Contents of ``manifest.json``; `root` and `sha256` say where it was read and its own hash."""

    schema_name: str
    schema_version: int
    run_id: str
    command: str
    config: dict[str, Any]
    seeds: dict[str, Any]
    started_utc: str
    ended_utc: str
    versions: dict[str, Any]
    inputs: dict[str, InputRef]
    files: dict[str, FileRef]
    extra: dict[str, Any]
    gpus: tuple[str, ...] = ()
    world_size: int = 1
    root: Path = field(default=Path(), compare=False)
    sha256: str = field(default="", compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain values in the order of the file."""
        return {
            "schema": {"name": self.schema_name, "version": self.schema_version},
            "run_id": self.run_id,
            "command": self.command,
            "started_utc": self.started_utc,
            "ended_utc": self.ended_utc,
            "config": self.config,
            "seeds": self.seeds,
            "versions": self.versions,
            "gpus": list(self.gpus),
            "world_size": self.world_size,
            "inputs": {k: vars(v) for k, v in self.inputs.items()},
            "extra": self.extra,
            "files": {k: vars(v) for k, v in sorted(self.files.items())},
        }


def is_sealed(path: Path) -> bool:
    """Whether the directory has a manifest."""
    return (path / layout.MANIFEST).is_file()


def manifest_sha256(path: Path) -> str:
    """Hash that other directories record for this one.

    Raises:
        UnsealedError: no manifest.
    """
    return read_manifest(path).sha256


def read_manifest(path: Path, *, schema: str | None = None, verify_files: bool = False) -> Manifest:
    """Read and check the manifest of a directory.

    Args:
        path: the directory.
        schema: required schema name, None for any sprl directory.
        verify_files: re-hash every file, nested sealed directories included.

    Raises:
        InputError: no such directory, foreign manifest, other schema, or a newer schema version.
        UnsealedError: a directory without manifest.
        CorruptionError: the manifest is damaged, or a file is missing or differs.
    """
    file = path / layout.MANIFEST
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _absent(path, schema) from error
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}", "check the path and its permissions") from error
    manifest = _parse(path, data)
    _check_schema(manifest, schema)
    if verify_files:
        for problem in file_problems(manifest):
            raise CorruptionError(problem, f"run `sprl verify dir {path}` for the whole list")
    return manifest


def _absent(path: Path, schema: str | None) -> InputError:
    wanted = f"{schema} directory" if schema else "sprl directory"
    hint = f"give the directory that {written_by(schema)} wrote"
    if not path.is_dir():
        kind = "is a file" if path.exists() else "does not exist"
        return InputError(f"{path} {kind}; needed is a finished {wanted}", hint)
    if (path / layout.UNFINISHED).is_file():
        unfinished = read_object(path / layout.UNFINISHED, _LOST)
        command = str(unfinished.get("command", "")).split(" ")[0] or "its command"
        return UnsealedError(
            f"{path} is unfinished (no {layout.MANIFEST})",
            f"finish it first: run `sprl {command} ... --out {path} --resume`",
        )
    return UnsealedError(f"{path} has no {layout.MANIFEST}: it is not a finished {wanted}", hint)


def _parse(path: Path, data: bytes) -> Manifest:
    file = path / layout.MANIFEST
    try:
        raw = parse_json(data)
    except ValueError as error:
        raise CorruptionError(f"{file} is not valid JSON: {error}", "restore the file from a copy") from error
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(schema, dict) or "name" not in schema or "version" not in schema:
        raise InputError(f"{file} is not an sprl manifest (field 'schema')", "give a directory written by sprl")
    try:
        inputs = {name: checked(InputRef(**value)) for name, value in raw["inputs"].items()}
        files = {_relative(name, file): checked(FileRef(**value)) for name, value in raw["files"].items()}
        manifest = Manifest(
            schema_name=schema["name"],
            schema_version=schema["version"],
            **{k: raw[k] for k in ("run_id", "command", "config", "seeds", "started_utc", "ended_utc", "versions")},
            inputs=inputs,
            files=files,
            extra=raw["extra"],
            gpus=tuple(raw["gpus"]),
            world_size=raw["world_size"],
            root=path,
            sha256=sha256_bytes(data),
        )
        return checked(manifest)
    except KeyError as error:
        raise CorruptionError(f"{file} lacks field {error.args[0]!r}", "restore the file from a copy") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise CorruptionError(f"{file} has a field of the wrong type: {error}", "restore it from a copy") from error


def _relative(name: str, file: Path) -> str:
    """A file name of a manifest, refused when it points out of the directory."""
    if name.startswith("/") or ".." in Path(name).parts or "\\" in name or "\0" in name or not name:
        raise CorruptionError(f"{file}: field 'files' names {name!r}, outside the directory", "do not use it")
    return name


def written_by(schema: str | None) -> str:
    """Which command writes directories of a kind, for messages."""
    command = layout.WRITTEN_BY.get(schema or "")
    return f"`sprl {command}`" if command else "sprl"


def _check_schema(manifest: Manifest, schema: str | None) -> None:
    name, version = manifest.schema_name, manifest.schema_version
    if schema is not None and name != schema:
        raise InputError(
            f"{manifest.root} is a directory of kind {name!r}, one of kind {schema!r} is needed",
            f"give the directory that {written_by(schema)} wrote",
        )
    if schema is None and name not in layout.SCHEMAS:
        raise InputError(f"{manifest.root} has unknown schema {name!r}", "give a directory written by sprl")
    known = layout.SCHEMAS.get(name, version)
    if version > known:
        raise InputError(
            f"{manifest.root} has schema {name!r} version {version}, this sprl reads up to {known}",
            f"upgrade stateplay-rl (the directory was written by {manifest.versions.get('sprl')})",
        )


def file_problems(manifest: Manifest) -> Iterator[str]:
    """Every file of a sealed directory that is missing or differs, as a message; nested ones included."""
    for name, ref in manifest.files.items():
        file = manifest.root / name
        try:
            size = file.stat().st_size
        except OSError:
            yield f"{file} is missing"
            continue
        if size != ref.size:
            yield f"{file} has {size} bytes, the manifest says {ref.size}"
        elif sha256_file(file) != ref.sha256:
            yield f"{file} does not match its sha256 in the manifest"
        elif file.name == layout.MANIFEST:
            yield from file_problems(read_manifest(file.parent))


def read_checked(manifest: Manifest, name: str) -> bytes:
    """Bytes of a file of a sealed directory, checked against its recorded hash.

    Raises:
        CorruptionError: not recorded, missing, or different.
    """
    ref = manifest.files.get(name)
    file = manifest.root / name
    if ref is None:
        raise CorruptionError(f"{file} is not in the manifest of {manifest.root}", "check the directory's origin")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise CorruptionError(f"{file} cannot be read: {error.strerror}", "restore it from a copy") from error
    if len(data) != ref.size or sha256_bytes(data) != ref.sha256:
        raise CorruptionError(f"{file} does not match its sha256 in the manifest", "restore it from a copy")
    return data


def sealed_object(folder: Path, schema: str, name: str) -> dict[str, Any]:
    """A JSON object of a finished directory, checked against its recorded hash.

    Raises:
        InputError: no such directory, or another schema.
        CorruptionError: not recorded, missing, different, or no JSON object.
    """
    data = read_checked(read_manifest(folder, schema=schema), name)
    return parse_object(data, folder / name, "restore it from a copy")


def input_ref(path: Path, relative_to: Path) -> InputRef:
    """How a manifest records an input: a sealed directory by its manifest, a file by its own hash.

    Raises:
        InputError: the input does not exist, or its manifest is damaged or foreign.
    """
    if not path.exists():
        raise InputError(f"input {path} does not exist", "check the path")
    relative = os.path.relpath(os.path.realpath(path), os.path.realpath(relative_to))
    if path.is_file():
        return InputRef(sha256_file(path), relative, None)
    if is_sealed(path):
        manifest = read_manifest(path)
        return InputRef(manifest.sha256, relative, manifest.schema_name)
    unfinished = path / layout.UNFINISHED
    return InputRef(None, relative, _open_schema(unfinished) if unfinished.is_file() else None)


def _open_schema(unfinished: Path) -> str:
    schema = read_object(unfinished, _LOST).get("schema")
    if not isinstance(schema, str):
        raise CorruptionError(f"{unfinished}: field 'schema' is {schema!r}, not a name", _LOST)
    return schema


def find_input(manifest: Manifest, name: str, candidates: Iterable[Path] = ()) -> Path:
    """An input of a directory: where it was, or wherever a directory of the same manifest hash lies now.

    Args:
        manifest: of the directory whose input is looked for.
        name: the input's name, for example ``conditions``.
        candidates: directories to try; their direct children are tried too.

    Raises:
        InputError: no such input was recorded, or none of the places holds it.
    """
    ref = manifest.inputs.get(name)
    if ref is None:
        raise InputError(f"{manifest.root} records no input {name!r}, only {sorted(manifest.inputs)}", "")
    recorded = Path(os.path.normpath(manifest.root.absolute() / ref.path))
    if ref.sha256 is None and recorded.exists():
        return recorded
    tried: list[Path] = []
    for place in (recorded, *_with_children([*candidates, manifest.root.absolute().parent])):
        tried.append(place)
        if _matches(place, ref):
            return place
    raise InputError(
        f"input {name!r} of {manifest.root} (sha256 {ref.sha256}) was not found; last known path {recorded}",
        f"give its present path (looked at {len(tried)} places)",
    )


def _with_children(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        yield folder
        if folder.is_dir():
            yield from sorted(child for child in folder.iterdir() if child.is_dir())


def _matches(place: Path, ref: InputRef) -> bool:
    if ref.schema_name is None:
        return place.is_file() and sha256_file(place) == ref.sha256
    # An extended run keeps its earlier manifests beside the newest.
    names = [place / layout.MANIFEST, *place.glob(layout.OLD_MANIFESTS)]
    return any(file.is_file() and sha256_file(file) == ref.sha256 for file in names)


def versions_changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Lines like ``torch 2.12.0 -> 2.13.0`` for software that differs."""
    keys = [*before, *(k for k in after if k not in before)]
    return tuple(f"{k} {before.get(k)} -> {after.get(k)}" for k in keys if before.get(k) != after.get(k))
