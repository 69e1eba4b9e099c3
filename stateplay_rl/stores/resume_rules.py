"""Whether an output directory may be begun, gone on with, or must be refused, from what lies in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.base import FrozenConfig, changed_keys, config_dict
from stateplay_rl.errors import OutputError, UsageError
from stateplay_rl.stores import layout, refusal
from stateplay_rl.stores.sealed import InputRef, is_sealed, read_manifest
from stateplay_rl.stores.unfinished import read_unfinished


@dataclass(frozen=True)
class OutputRequest:
    """Arguments of `OutputDirectory.open`, resolved."""

    out: Path
    schema: str
    version: int
    command: str
    config: FrozenConfig
    refs: Mapping[str, InputRef]
    resume: bool
    overwrite: bool
    extend: bool


def refuse_state(request: OutputRequest) -> None:
    """Refusals that depend on what already lies in the output directory."""
    out = request.out
    names = refusal.entries(out)
    if not names:
        return
    if request.overwrite:
        refusal.refuse_precious(out)
    elif is_sealed(out):
        _refuse_sealed(request)
    elif layout.UNFINISHED in names:
        _refuse_unfinished(request)
    else:
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise OutputError(
            f"output {out} is not empty and was not written by sprl ({some})",
            "choose another --out, or empty it with --overwrite",
        )


def _refuse_sealed(request: OutputRequest) -> None:
    if not request.resume:
        raise OutputError(f"output {request.out} is finished", "choose another --out, or replace it with --overwrite")
    manifest = read_manifest(request.out, schema=request.schema)
    if not request.extend:
        _refuse_other(request, manifest.config, manifest.inputs, manifest.command)


def _refuse_unfinished(request: OutputRequest) -> None:
    record = read_unfinished(request.out)
    if record.schema != request.schema:
        raise OutputError(
            f"output {request.out} holds an unfinished {record.schema!r} directory, not {request.schema!r}",
            "choose another --out, or empty it with --overwrite",
        )
    if record.version > request.version:
        raise OutputError(
            f"output {request.out} was begun with schema version {record.version}, this sprl writes {request.version}",
            "upgrade stateplay-rl and run again with --resume",
        )
    if not request.resume:
        raise OutputError(
            f"output {request.out} is unfinished (begun {record.started_utc} by `sprl {record.command}`)",
            "go on with --resume, or start over with --overwrite",
        )
    if not request.extend:
        _refuse_other(request, record.config, record.inputs, record.command)


def _refuse_other(
    request: OutputRequest, config: Mapping[str, Any], inputs: Mapping[str, InputRef], command: str
) -> None:
    """A resume must mean the same work: same command, config and inputs."""
    if command != request.command:
        raise UsageError(
            f"{request.out} was begun by `sprl {command}`, not `sprl {request.command}`",
            "choose another --out",
        )
    allowed = type(request.config).resume_may_change
    changed = {
        key: values
        for key, values in changed_keys(config, config_dict(request.config)).items()
        if not any(key == name or key.startswith(f"{name}.") for name in allowed)
    }
    if changed:
        lines = "\n".join(f"  {key}: was {old!r}, now {new!r}" for key, (old, new) in changed.items())
        raise UsageError(
            f"{request.out} was begun with another config:\n{lines}",
            f"resume with --config {request.out / layout.CONFIG}, or choose another --out",
        )
    for name in sorted({*inputs, *request.refs}):
        before, now = inputs.get(name), request.refs.get(name)
        if (before and (before.sha256, before.schema_name)) != (now and (now.sha256, now.schema_name)):
            raise UsageError(
                f"{request.out} was begun with another input {name!r}: "
                f"was {before and before.path} ({before and before.sha256}), now {now and now.path} "
                f"({now and now.sha256})",
                "resume with the same input, or choose another --out",
            )
