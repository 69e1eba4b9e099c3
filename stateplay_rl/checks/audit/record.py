"""`audit.json` as it is read back: whole, of an older sprl, or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stateplay_rl.errors import CheckError, CorruptionError
from stateplay_rl.stores import layout
from stateplay_rl.stores.foreign import parse_json
from stateplay_rl.stores.manifest import read_manifest

AUDIT_KEYS = (
    "verdict", "trainable", "reasons", "untrainable", "complete_with", "class", "class_text", "world", "preset",
    "preset_inferred", "scan", "allow_init", "files", "prefixes", "name_map", "architecture", "assumed", "stated",
    "settings_sha256", "coverage", "sources", "health", "checkout",
)  # fmt: skip
"""All that this version writes."""


def read_audit(folder: Path, keys: Sequence[str], again: str) -> dict[str, Any]:
    """The contents of a sealed audit's `audit.json`.

    Args:
        folder: what `sprl audit-ckpt` wrote.
        keys: what the caller is going to look at.
        again: the command that makes the audit anew, for messages.

    Raises:
        InputError, UnsealedError: the directory is foreign or unfinished.
        CorruptionError: the file is no longer what was sealed, or no object.
        CheckError: it lacks one of the keys: a sealed file that does was written by an older sprl.
    """
    manifest = read_manifest(folder, schema="audit", verify_files=True)
    file = folder / layout.AUDIT
    try:
        audit = parse_json(file.read_bytes())
    except ValueError as error:
        raise CorruptionError(f"{file} is damaged: {error}", again) from error
    if not isinstance(audit, dict):
        raise CorruptionError(f"{file} is damaged: a {type(audit).__name__} instead of an object", again)
    lacking = [key for key in keys if key not in audit]
    if lacking:
        writer = manifest.versions.get("sprl", "of an unknown version")
        raise CheckError(f"the audit {folder} is old: sprl {writer} did not record {', '.join(lacking)}", again)
    return audit
