"""Reading what others may have written: JSON that nests without end, and records whose fields have other types.

A reader's `except ValueError` then covers all that a file's content can cause.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from stateplay_rl.errors import CorruptionError

_SAFE_DIGITS = 300
"""Integers of fewer characters are below the largest float."""


def parse_json(data: bytes | str, *, finite: bool = True) -> Any:
    """`json.loads`, with every fault of the content a ValueError.

    Args:
        data: contents of a file.
        finite: refuse NaN, infinities and numbers that no float holds, on which a later `int()` or `float()` would
            stumble. Files of others that are only looked into may hold them.

    Raises:
        ValueError: no JSON, not UTF-8, or nested more deeply than the interpreter can follow.
    """
    try:
        if not finite:
            return json.loads(data)
        return json.loads(data, parse_constant=_refused, parse_float=_float, parse_int=_int)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refused(text[:20])


def _int(text: str) -> int:
    value = int(text)
    return value if len(text) < _SAFE_DIGITS else _refused(f"{text[:20]}...")


def read_object(file: Path, hint: str) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        file: the file.
        hint: what to do when it is damaged.

    Raises:
        CorruptionError: missing, unreadable, or no JSON object.
    """
    try:
        return parse_object(file.read_bytes(), file, hint)
    except OSError as error:
        raise CorruptionError(f"{file} cannot be read: {error.strerror}", hint) from error


def parse_object(data: bytes | str, file: Path, hint: str) -> dict[str, Any]:
    """The JSON object in the contents of `file`.

    Raises:
        CorruptionError: no JSON, or another value than an object.
    """
    try:
        value = parse_json(data)
    except ValueError as error:
        raise CorruptionError(f"{file} is not readable JSON: {error}", hint) from error
    if not isinstance(value, dict):
        raise CorruptionError(f"{file} is not a JSON object", hint)
    return value


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
