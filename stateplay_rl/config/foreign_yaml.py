"""Reading YAML that others may have written: every fault of the content a ValueError, and bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LARGEST_YAML_BYTES = 1 << 20
LARGEST_YAML_VALUES = 100_000
_BAD_YAML = (
    yaml.YAMLError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""What PyYAML's safe constructors raise: `!!int ""` an IndexError, `!!bool x` a KeyError, a 13th month a ValueError."""


def read_yaml(file: Path) -> Any:
    """The value in a file.

    Raises:
        ValueError: larger than `LARGEST_YAML_BYTES`, or as `parse_yaml`.
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        data = stream.read(LARGEST_YAML_BYTES + 1)
    if len(data) > LARGEST_YAML_BYTES:
        raise ValueError(f"larger than the {LARGEST_YAML_BYTES} bytes that are read at most")
    return parse_yaml(data)


def parse_yaml(data: bytes | str) -> Any:
    """Plain values of YAML text; no tag runs code.

    Raises:
        ValueError: no YAML, a key given twice, an alias that contains itself, or more than `LARGEST_YAML_VALUES`
            values once every alias is written out (a few lines can stand for billions).
    """
    try:
        values = yaml.load(data, Loader=_UniqueKeyLoader)
        _require_finite(values)
    except _BAD_YAML as error:
        raise ValueError(_problem(error)) from error
    return values


def _problem(error: Exception) -> str:
    """What PyYAML found, with the line counted from 1, without its own drawing of the text."""
    mark = getattr(error, "problem_mark", None)
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return str(error) or repr(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"


def _require_finite(values: object) -> None:
    """Refuse anchors that contain themselves or multiply: a few lines can stand for billions of values.

    Raises:
        ValueError: more than `LARGEST_YAML_VALUES` values once every alias is written out.
    """
    left, count = [values], 0
    while left:
        value = left.pop()
        count += 1
        if count > LARGEST_YAML_VALUES:
            raise ValueError(f"its aliases stand for more than {LARGEST_YAML_VALUES} values")
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list | tuple | set):
            left += value


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice: YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
