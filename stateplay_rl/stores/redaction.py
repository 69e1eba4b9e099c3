"""Secrets of the environment: blanked out of whatever is printed or stored, refused in what is configured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stateplay_rl.errors import UsageError

_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_MIN_SECRET_LENGTH = 8


def _secrets() -> dict[str, str]:
    """Values by the names of the environment variables that hold them."""
    return {
        name: value
        for name, value in os.environ.items()
        if len(value) >= _MIN_SECRET_LENGTH and any(word in name.upper() for word in _SECRET_WORDS)
    }


def redact(text: str) -> str:
    """Text with the values of secret environment variables replaced by ``<NAME>``, wherever it picked them up."""
    for name, value in _secrets().items():
        text = text.replace(value, f"<{name}>")
    return text


def redact_json(value: Any) -> Any:
    """The same for every text in a JSON value, keys included."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact_json(key): redact_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_json(item) for item in value]
    return value


def refuse_secrets(config: Mapping[str, Any], place: str = "") -> None:
    """Refuse a setting that is the value of a secret environment variable: settings are written to disk.

    Args:
        config: plain values.
        place: dotted key of `config` itself.

    Raises:
        UsageError: it names the key and the variable, never the value.
    """
    secrets = {value: name for name, value in _secrets().items()}
    for key, value in config.items():
        where = f"{place}.{key}" if place else str(key)
        if isinstance(value, Mapping):
            refuse_secrets(value, where)
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, str) and item in secrets:
                raise UsageError(
                    f"config key {where!r} holds the value of the environment variable {secrets[item]}: settings are "
                    "written to disk",
                    "name the variable instead, and let what needs the secret read it from the environment",
                )
