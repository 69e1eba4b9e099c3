"""What the checks of a directory's contents share: its facts, its groups, and a list of problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.errors import CheckError, SprlError
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from stateplay_rl.stores.sealed import Manifest, is_sealed, read_manifest
from stateplay_rl.stores.unfinished import UnfinishedRecord, read_unfinished

SHOWN = 5
GROUPS_INPUT = "groups"
"""Name of the input that `score` and a hand-made segment read their groups from."""


@dataclass(frozen=True)
class Facts:
    """A directory of the walk.

    Args:
        manifest: None while it is unfinished.
        inputs: those that were found.
        search: folders in which inputs of its parts are looked for.
    """

    path: Path
    schema: str
    manifest: Manifest | None
    inputs: Mapping[str, Path]
    search: tuple[Path, ...] = ()


def provisional_manifest(path: Path, record: UnfinishedRecord) -> Manifest:
    """The record of an unfinished directory in the form in which inputs are looked for."""
    return Manifest(
        schema_name=record.schema,
        schema_version=record.version,
        run_id=record.run_id,
        command=record.command,
        config=record.config,
        seeds={},
        started_utc=record.started_utc,
        ended_utc="",
        versions=record.versions,
        inputs=record.inputs,
        files={},
        extra={},
        root=path,
    )


def inputs_record(path: Path) -> Manifest:
    """The manifest of a sealed directory, or what an unfinished one recorded of its inputs when it began.

    Raises:
        UnsealedError, InputError, CorruptionError: neither can be read.
    """
    if not is_sealed(path) and (path / layout.UNFINISHED).is_file():
        return provisional_manifest(path, read_unfinished(path))
    return read_manifest(path)


def collect(problems: Sequence[str], passed: str, todo: str = "restore the files from a copy") -> str:
    """`passed`, or CheckError with the first few problems."""
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise CheckError("; ".join(problems[:SHOWN]) + more, todo)
    return passed


def group_stores(path: Path) -> list[GroupStore]:
    """Every folder of groups in a `groups`, `segment` or `run` directory, held-out evaluations included."""
    folders = [path, path / layout.GROUPS_FOLDER]
    folders += sorted(path.glob(f"{layout.SEGMENTS_FOLDER}/*/{layout.GROUPS_FOLDER}"))
    folders += sorted(path.glob(f"{layout.HELDOUT_FOLDER}/*"))
    return [store for store in map(GroupStore, folders) if store.finished()]


def all_groups(path: Path) -> Iterator[StoredGroup | str]:
    """Finished groups, or what is wrong with one."""
    for store in group_stores(path):
        for group_id in store.finished():
            try:
                yield store.read(group_id)
            except SprlError as error:
                yield error.what


def rehash_groups(stores: Sequence[GroupStore]) -> str:
    """Re-hash every file of every finished group, and the content of every candidate's latents.

    Raises:
        CheckError: with the first few problems.
    """
    problems: list[str] = []
    groups = candidates = 0
    for store in stores:
        for group_id in store.finished():
            try:
                group = store.read(group_id)
                groups, candidates = groups + 1, candidates + group.record.candidates
                group.verify()
                for candidate in range(group.record.candidates):
                    group.latents(candidate)
            except SprlError as error:
                problems.append(error.what)
    return collect(problems, f"{groups} finished groups, {candidates} candidates' latents re-hashed")
