"""Reading what others may have written: JSON that nests without end, and records whose fields have other types.

A reader's `except ValueError` then covers all that a file's content can cause.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints


def parse_json(data: bytes | str) -> Any:
    """`json.loads`, with every fault of the content a ValueError.

    Args:
        data: contents of a file.

    Raises:
        ValueError: no JSON, not UTF-8, or nested more deeply than the interpreter can follow.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


Record = TypeVar("Record")


def checked(record: Record) -> Record:
    """Compare the fields of a dataclass with their annotations, strictly: "3" is no number.

    Args:
        record: an instance of a dataclass, built from foreign values; dataclasses inside it are not looked into.

    Returns:
        The record itself.

    Raises:
        ValueError: naming the first field whose value is of another type.
    """
    from pydantic import ValidationError

    kind: type = type(record)
    for name, adapter in _adapters(kind).items():
        try:
            adapter.validate_python(getattr(record, name), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in (name, *first["loc"]))
            raise ValueError(f"field {field!r}: {first['msg']}, found {first['input']!r:.80}") from error
    return record


@lru_cache(maxsize=32)
def _adapters(kind: type) -> dict[str, Any]:
    from pydantic import TypeAdapter

    return {name: TypeAdapter(hint) for name, hint in get_type_hints(kind).items()}
