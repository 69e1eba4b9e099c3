"""Result files of a directory, read strictly: a JSON object, or JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stateplay_rl.stores import foreign

Json = Mapping[str, Any]


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in `folder`/`name`.

    Raises:
        CorruptionError: missing, unreadable, or no JSON object.
    """
    return foreign.read_object(folder / name, f"run `sprl verify dir {folder}`")


def optional_object(folder: Path, name: str) -> dict[str, Any]:
    """The same; empty where no such file was written."""
    return read_object(folder, name) if (folder / name).is_file() else {}


def objects_of(record: Json, key: str) -> list[dict[str, Any]]:
    """The list of objects under `key`; empty when it is absent."""
    value = record.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
