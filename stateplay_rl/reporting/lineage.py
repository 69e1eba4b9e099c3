"""Where the numbers of one directory come from: its facts and files, and the chain of inputs back to weight files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from stateplay_rl.errors import InputError
from stateplay_rl.reporting.blocks import Lineage, LineageStep
from stateplay_rl.reporting.json_files import objects_of, read_object
from stateplay_rl.reporting.numbers import MISSING
from stateplay_rl.reporting.sources import Source
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import Manifest, find_input, read_manifest
from stateplay_rl.stores.unfinished import read_unfinished

SHOWN_FILES = 60
INDEXED_FILES = 400
"""Files whose hashes the drawer knows; those of single groups stand in the groups' cards."""
MOST_STEPS = 60


def lineage_of(
    source: Source, out: Path, extra: Sequence[tuple[str, str]] = (), search: Sequence[Path] = ()
) -> Lineage:
    """Run id, hashes, files and inputs of a directory, and what those inputs came from.

    Args:
        out: the report's directory; places are given relative to it.
        extra: further facts of this kind of directory (policy hashes, ...).
        search: directories in which inputs are looked for that are not where they were.
    """
    base = os.path.realpath(out)
    place = os.path.relpath(source.path, base)
    config_yaml = yaml.safe_dump(dict(source.config), sort_keys=False, allow_unicode=True)
    manifest = source.manifest
    if manifest is None:
        facts = (("directory", place), ("schema", source.schema), ("state", "unfinished"), *extra)
        begun = read_unfinished(source.path).inputs
        steps = tuple(
            LineageStep(name, os.path.relpath(os.path.normpath(source.path / ref.path), base), ref.sha256 or "")
            for name, ref in begun.items()
        )
        return Lineage(facts, (), (), 0, config_yaml, steps)
    versions = manifest.versions
    facts = (
        ("directory", place),
        ("schema", f"{manifest.schema_name} {manifest.schema_version}"),
        ("run id", manifest.run_id),
        ("command", manifest.command),
        ("started", manifest.started_utc),
        ("ended", manifest.ended_utc),
        ("manifest sha256", manifest.sha256),
        ("software", ", ".join(f"{name} {value}" for name, value in versions.items() if value) or MISSING),
        ("seeds", ", ".join(f"{name} {value}" for name, value in manifest.seeds.items()) or MISSING),
        *extra,
    )
    inputs = tuple(
        (name, ref.path, ref.sha256 or "not sealed when it was read") for name, ref in manifest.inputs.items()
    )
    names = sorted(manifest.files, key=lambda name: (name.count("/"), name))
    files = tuple((n, manifest.files[n].size, manifest.files[n].sha256) for n in names[:SHOWN_FILES])
    return Lineage(
        facts,
        inputs,
        files,
        max(0, len(names) - SHOWN_FILES),
        config_yaml,
        tuple(_steps(manifest, base, search, set()))[:MOST_STEPS],
        _indexed(manifest),
    )


def _indexed(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Names and hashes of the files that a number may name: all but those of single groups."""
    names = [name for name in sorted(manifest.files) if layout.GROUPS_FOLDER not in name.split("/")]
    names = [name for name in names if not name.startswith((f"{layout.HELDOUT_FOLDER}/", "encoded/", "frames/"))]
    return tuple((name, manifest.files[name].sha256) for name in names[:INDEXED_FILES])


def _steps(manifest: Manifest, base: str, search: Sequence[Path], seen: set[str]) -> list[LineageStep]:
    """The inputs of a directory, theirs, and so on; an audit ends in weight files."""
    steps: list[LineageStep] = []
    policies = manifest.extra.get("policies")
    for name, sha256 in policies.items() if isinstance(policies, dict) else ():
        steps.append(LineageStep(f"policy, {name}", f"{layout.POLICY_FOLDER}/{sha256}.safetensors", str(sha256)))
    for name, ref in manifest.inputs.items():
        known = ref.sha256 or ""
        if known and known in seen:
            continue
        seen.add(known)
        try:
            found = find_input(manifest, name, search)
        except InputError:
            # The report still says what it was: only its own inputs stay unknown.
            steps.append(LineageStep(name, f"{ref.path} (not found from here)", known))
            continue
        steps.append(LineageStep(name, os.path.relpath(found, base), known))
        if not (found / layout.MANIFEST).is_file():
            continue
        inner = read_manifest(found)
        if inner.schema_name == "audit":
            steps += _weight_files(read_object(found, layout.AUDIT))
        steps += _steps(inner, base, search, seen)
    return steps


def _weight_files(audit: dict[str, Any]) -> list[LineageStep]:
    return [
        LineageStep(f"weight file, {file.get('role')}", Path(str(file.get("path"))).name, str(file.get("sha256")))
        for file in objects_of(audit, "files")
    ]
