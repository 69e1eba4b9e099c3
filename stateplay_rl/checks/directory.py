"""`verify dir`: re-hash a directory and all that it came from, and say where the chain breaks.

For every directory of the chain: its manifest, its files, what its kind records about its own contents,
then its inputs, found by manifest hash at their recorded path, beside it, or in the folders to search.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from stateplay_rl.checks import directory_contents as contents
from stateplay_rl.checks.directory_facts import SHOWN, Facts, provisional_manifest
from stateplay_rl.checks.lines import CheckLine, NotChecked, run_check
from stateplay_rl.errors import CheckError, InputError, SprlError
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import sealed_names
from stateplay_rl.stores.sealed import Manifest, file_problems, find_input, is_sealed, read_manifest
from stateplay_rl.stores.unfinished import UnfinishedRecord, read_unfinished

MAX_DEPTH = 12


def require_sprl_directory(path: Path) -> None:
    """Raise InputError unless `path` is a directory that sprl wrote, finished or not."""
    if not path.is_dir():
        raise InputError(f"{path} is not a directory", "give a directory that sprl wrote")
    if not is_sealed(path) and not (path / layout.UNFINISHED).is_file():
        raise InputError(
            f"{path} has neither {layout.MANIFEST} nor {layout.UNFINISHED}: sprl did not write it",
            "give a directory that sprl wrote",
        )


def run_directory(path: Path, search: Sequence[Path] = ()) -> list[CheckLine]:
    """Verify a directory and its lineage.

    Args:
        path: any directory that sprl wrote, finished or not.
        search: folders in which inputs are looked for by hash, when they are not where they were.

    Returns:
        Lines in the order of the walk; the first failed one names the place of the break.

    Raises:
        InputError: no such directory, or one that sprl did not write.
    """
    require_sprl_directory(path)
    walk = _Walk(tuple(search))
    walk.visit(path, path.name or str(path), 0)
    return walk.lines


@dataclass
class _Walk:
    """Lines so far, and the directories already visited."""

    search: tuple[Path, ...]
    lines: list[CheckLine] = field(default_factory=list)
    visited: set[str] = field(default_factory=set)

    def visit(self, path: Path, label: str, depth: int) -> None:
        real = os.path.realpath(path)
        if real in self.visited or depth > MAX_DEPTH:
            return
        self.visited.add(real)
        if not is_sealed(path):
            self._unfinished(path, label, depth)
            return
        manifest: list[Manifest] = []
        self._add(f"{label}: manifest", partial(_read, path, manifest))
        if not manifest:
            return
        self._add(f"{label}: files", partial(_files, manifest[0]))
        facts = Facts(path, manifest[0].schema_name, manifest[0], self._inputs(manifest[0], label, depth), self.search)
        self._contents(facts, label, depth)

    def _unfinished(self, path: Path, label: str, depth: int) -> None:
        records: list[UnfinishedRecord] = []
        self._add(f"{label}: manifest", partial(_unfinished, path, records))
        if records:
            inputs = self._inputs(provisional_manifest(path, records[0]), label, depth)
            self._contents(Facts(path, records[0].schema, None, inputs, self.search), label, depth)

    def _contents(self, facts: Facts, label: str, depth: int) -> None:
        for finding in contents.examine(facts):
            self._add(f"{label}: {finding.name}", finding.check)
        for child in contents.children(facts):
            self.visit(child, f"{label}/{child.relative_to(facts.path).as_posix()}", depth + 1)

    def _inputs(self, manifest: Manifest, label: str, depth: int) -> dict[str, Path]:
        """Find, verify and return the inputs of a sealed directory."""
        found: dict[str, Path] = {}
        for name in sorted(manifest.inputs):
            places: list[Path] = []
            self._add(f"{label}: input {name!r}", partial(_find, manifest, name, self.search, places))
            if places:
                found[name] = places[0]
                if places[0].is_dir() and manifest.inputs[name].schema_name is not None:
                    self.visit(places[0], f"{label} <- {name}", depth + 1)
        return found

    def _add(self, name: str, check: Callable[[], str]) -> None:
        self.lines.append(run_check(name, check))


def _read(path: Path, into: list[Manifest]) -> str:
    manifest = read_manifest(path)
    into.append(manifest)
    return (
        f"{manifest.schema_name} version {manifest.schema_version}, `sprl {manifest.command}`, sealed "
        f"{manifest.ended_utc}, sha256 {manifest.sha256[:12]}"
    )


def _unfinished(path: Path, into: list[UnfinishedRecord]) -> str:
    record = read_unfinished(path)
    into.append(record)
    raise NotChecked(
        f"unfinished {record.schema} directory, begun {record.started_utc}: no manifest vouches for its "
        f"files; finish it with `sprl {record.command} ... --out {path} --resume`"
    )


def _files(manifest: Manifest) -> str:
    problems = list(_all_problems(manifest))
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise CheckError("; ".join(problems[:SHOWN]) + more, "restore the files from a copy")
    extra = sorted(set(sealed_names(manifest.root)) - set(manifest.files))
    note = f"; not in the manifest, so not vouched for: {', '.join(extra[:SHOWN])}" if extra else ""
    size = sum(ref.size for ref in manifest.files.values())
    return f"{len(manifest.files)} files, {size} bytes re-hashed" + note


def _all_problems(manifest: Manifest) -> Iterator[str]:
    try:
        yield from file_problems(manifest)
    except SprlError as error:
        # A nested directory's manifest may itself be unreadable.
        yield error.what


def _find(manifest: Manifest, name: str, search: Sequence[Path], into: list[Path]) -> str:
    ref = manifest.inputs[name]
    recorded = Path(os.path.normpath(manifest.root.absolute() / ref.path))
    try:
        place = find_input(manifest, name, search)
    except InputError as error:
        if recorded.exists():
            raise CheckError(
                f"{recorded} is no longer what was read: its sha256 is not {ref.sha256}",
                "restore it from a copy",
            ) from error
        raise NotChecked(
            f"not found (sha256 {ref.sha256}, last known path {recorded}): give --search FOLDER"
        ) from error
    into.append(place)
    if ref.sha256 is None:
        return f"{place}, which was not sealed when it was read: recorded by path only"
    return f"{place}, sha256 {ref.sha256[:12]} as recorded"
