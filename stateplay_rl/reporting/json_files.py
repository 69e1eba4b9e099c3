"""Result files of a directory, read strictly: a JSON object, or JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stateplay_rl.errors import CorruptionError

Json = Mapping[str, Any]


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in `folder`/`name`.

    Raises:
        CorruptionError: missing, unreadable, or no JSON object.
    """
    file = folder / name
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CorruptionError(f"{file} is not readable JSON: {error}", f"run `sprl verify dir {folder}`") from error
    if not isinstance(value, dict):
        raise CorruptionError(f"{file} is not a JSON object", f"run `sprl verify dir {folder}`")
    return value


def objects_of(record: Json, key: str) -> list[dict[str, Any]]:
    """The list of objects under `key`; empty when it is absent."""
    value = record.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
