"""Frozen configs: YAML file, dotted overrides, and messages that name the key.

No torch here: configs are parsed before anything heavy is imported.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from stateplay_rl.config.foreign_yaml import parse_yaml, read_yaml
from stateplay_rl.errors import InputError, UsageError

_GIVE_IT = "give it as an option, with --set KEY=VALUE or in the config file; --help lists the options"
_CORRECT_IT = "correct the option, the --set or the config file; --help says what is possible"
Schema = TypeVar("Schema", bound="FrozenConfig")


class FrozenConfig(BaseModel):
    """Base of all configs: immutable, unknown keys are errors, NaN and infinities too.

    A subclass may name in `resume_may_change` the dotted keys that do not change what a run means (number of
    workers, devices, ...): only those may differ when a directory is resumed.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )
    resume_may_change: ClassVar[frozenset[str]] = frozenset()


def load_config(
    schema: type[Schema],
    file: Path | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> Schema:
    """A config from the schema's defaults, a YAML file and ``a.b=value`` overrides, in this order.

    Args:
        schema: the command's config class.
        file: YAML file, or None for the defaults.
        overrides: ``dotted.key=value``; the right side is parsed as YAML.
        flags: further overrides as dotted key -> value, applied last.

    Raises:
        UsageError: an unknown key (with the nearest valid one), a wrong type or a value out of range.
        InputError: the file is missing or is not a YAML mapping.
    """
    values: dict[str, Any] = _read_yaml(file) if file is not None else {}
    for override in overrides:
        _apply_override(values, override)
    for key, value in (flags or {}).items():
        _assign(values, key, value, f"{key}={value}")
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise UsageError(*_explain(schema, error, file)) from error


def dump_config(config: FrozenConfig) -> str:
    """The resolved config as YAML that `load_config` reads back to an equal object."""
    return yaml.safe_dump(config_dict(config), sort_keys=False, allow_unicode=True)


def config_dict(config: FrozenConfig) -> dict[str, Any]:
    """The resolved config as plain JSON values."""
    return config.model_dump(mode="json")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping as ``{"a.b": value}``; lists are values."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, with both values (None when absent)."""
    left, right = flatten(before), flatten(after)
    keys = [*left, *(key for key in right if key not in left)]
    return {k: (left.get(k), right.get(k)) for k in keys if left.get(k) != right.get(k)}


def valid_keys(schema: type[BaseModel], prefix: str = "") -> list[str]:
    """All dotted keys of a config class, parents before children."""
    keys: list[str] = []
    for name, field in schema.model_fields.items():
        keys.append(prefix + name)
        for child in _models(field.annotation):
            keys += [k for k in valid_keys(child, f"{prefix}{name}.") if k not in keys]
    return keys


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Config classes that an annotation mentions (itself, or inside a union)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        values = read_yaml(file)
    except OSError as error:
        raise InputError(f"cannot read config {file}: {error.strerror}", "check --config") from error
    except ValueError as error:
        raise InputError(f"config {file} is not valid YAML: {error!s:.500}", "correct the file") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InputError(f"config {file} must be a mapping of keys to values", "correct the file")
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise UsageError(f"override {override!r} is not of the form key.subkey=value", "example: --set train.seed=3")
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise UsageError(f"value of override {override!r} is not valid YAML", "quote it") from error
    _assign(values, key.strip(), value, override)


def _assign(values: dict[str, Any], key: str, value: Any, override: str) -> None:
    *parents, leaf = key.split(".")
    node = values
    for part in parents:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise UsageError(f"override {override!r}: {part!r} holds a value, not keys", "check the key's path")
        node = child
    node[leaf] = value


def _explain(schema: type[BaseModel], error: ValidationError, file: Path | None) -> tuple[str, str]:
    """Message and hint of a failed validation: each bad key with its value and the nearest valid key."""
    source = f" in {file}" if file is not None else ""
    keys = valid_keys(schema)
    lines: list[str] = []
    hints: list[str] = []
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"]) or "config"
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown config key {key!r}{source}")
            hints.append(_nearest(key, keys))
        else:
            # A key that was given in the place of its variable's name is not repeated.
            whole = isinstance(item["input"], Mapping | BaseModel)
            hidden = whole or key.endswith("api_key_env")
            got = "" if hidden else f", got {item['input']!r:.120}"
            if item["type"] == "missing":
                lines.append(f"config key {key!r} is needed{source}")
                hints.append(_GIVE_IT)
                continue
            what = item["msg"].removeprefix("Value error, ")
            lines.append(f"config key {key!r}{source}: {what[:1].lower()}{what[1:]}{got}")
    return "\n".join(lines), "; ".join(dict.fromkeys(h for h in hints if h)) or _CORRECT_IT


_ALIKE = 0.6
"""Below this two keys have little in common, and a proposal misleads."""


def _nearest(key: str, keys: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, keys, n=1, cutoff=_ALIKE)
    if not near:
        leaf = key.rpartition(".")[2]
        near = [k for k in keys if k.rpartition(".")[2] == leaf] or difflib.get_close_matches(
            leaf, [k.rpartition(".")[2] for k in keys], n=1, cutoff=_ALIKE
        )
    if near:
        return f"did you mean {near[0]!r}?"
    return "valid keys: " + ", ".join(k for k in keys if "." not in k)
