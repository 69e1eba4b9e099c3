"""The directories that a report is made of: what each one is, its manifest, and its lineage."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.foreign_yaml import read_yaml
from stateplay_rl.errors import CorruptionError, UnsealedError, UsageError
from stateplay_rl.reporting.page import unique_keys
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import Manifest, is_sealed, read_manifest
from stateplay_rl.stores.unfinished import read_unfinished

LABELS = {
    "audit": "checkpoint audit",
    "conditions": "conditions",
    "groups": "groups of candidates",
    "scores": "scores",
    "run": "training run",
    "segment": "segment of a training run",
    "verify": "verification",
    "reward_model": "reward model",
    "probe": "probe of a judge",
    "preview": "dry run of a judge",
}
OPEN_READABLE = ("run",)
"""Directories that are reported on before they are sealed."""


@dataclass(frozen=True)
class Source:
    """One directory given to the report.

    Attributes:
        schema: its kind, a name of `layout.SCHEMAS`.
        key: prefix of its ids and file names in the report.
        manifest: None while it is unfinished.
        config: the resolved config it was made with.
    """

    path: Path
    schema: str
    name: str
    key: str
    manifest: Manifest | None
    config: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        return self.manifest is not None


def open_sources(paths: Sequence[Path]) -> tuple[Source, ...]:
    """Recognise each path.

    Raises:
        UsageError: no path, or one path twice.
        InputError: missing or foreign directory.
        UnsealedError: an unfinished directory that is not a run.
    """
    if not paths:
        raise UsageError("no directory was given", "sprl report PATH [PATH ...] --out DIR")
    real = [Path(os.path.realpath(path)) for path in paths]
    for path in real:
        if real.count(path) > 1:
            raise UsageError(f"{path} was given more than once", "give each directory once")
    names = _names(real)
    keys = unique_keys(dict(enumerate(names)))
    return tuple(_open(path, names[index], keys[index]) for index, path in enumerate(real))


def _names(paths: Sequence[Path]) -> list[str]:
    """Folder names, with their parent's name in front where two are alike."""
    plain = [path.name for path in paths]
    return [
        name if plain.count(name) == 1 else f"{path.parent.name}/{name}"
        for path, name in zip(paths, plain, strict=True)
    ]


def _open(path: Path, name: str, key: str) -> Source:
    if is_sealed(path) or not (path / layout.UNFINISHED).is_file():
        manifest = read_manifest(path)
        return Source(path, manifest.schema_name, name, key, manifest, manifest.config)
    schema = read_unfinished(path).schema
    if schema not in OPEN_READABLE:
        raise UnsealedError(
            f"{path} is an unfinished {schema} directory (no {layout.MANIFEST})",
            f"finish it first: run its command again with --out {path} --resume",
        )
    return Source(path, schema, name, key, None, _config_file(path))


def _config_file(path: Path) -> Mapping[str, Any]:
    file = path / layout.CONFIG
    try:
        value = read_yaml(file)
    except (OSError, ValueError) as error:
        raise CorruptionError(f"{file} cannot be read as YAML: {error}", "restore it from a copy") from error
    if not isinstance(value, dict):
        raise CorruptionError(f"{file} is not a mapping", "restore it from a copy")
    return value
