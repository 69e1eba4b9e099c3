"""Where groups are read from: a sealed `groups/` directory, or the finished groups of a run, open or sealed.

Inside an open run a group is finished once its `group.json` exists; whoever reads such groups records their
hashes, because the run goes on growing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from stateplay_rl.stores.manifest import is_sealed, read_manifest
from stateplay_rl.stores.unfinished import read_unfinished

WORLD_UNKNOWN = "unknown"


@dataclass(frozen=True)
class GroupSource:
    """Finished groups below one path.

    Args:
        path: the directory that the user gave.
        sealed: whether a manifest answers for all of it.
        world: `world` of the config that made the groups; `unknown` where no record says.
        roots: folder of each group, by group id.
    """

    path: Path
    sealed: bool
    world: str
    roots: Mapping[str, Path]

    def hashes(self, group_ids: Iterator[str] | tuple[str, ...]) -> dict[str, str]:
        """Hash of each group's `group.json`."""
        return {group_id: self.read(group_id).sha256 for group_id in group_ids}

    def read(self, group_id: str, expected_sha256: str | None = None) -> StoredGroup:
        """One group.

        Args:
            group_id: one of `roots`.
            expected_sha256: hash of its `group.json` when it was first listed.

        Raises:
            CorruptionError: damaged, gone, or changed since it was listed.
        """
        if group_id not in self.roots:
            raise CorruptionError(f"{self.path} no longer holds group {group_id}", "restore it from a copy")
        group = GroupStore(self.roots[group_id]).read(group_id)
        if expected_sha256 not in (None, group.sha256):
            raise CorruptionError(
                f"{group.folder / layout.GROUP} has changed since it was first read",
                "start over with --overwrite, or restore the group",
            )
        return group


def open_groups(path: Path) -> GroupSource:
    """The finished groups below `path`.

    Args:
        path: `groups/`, `run/`, `run/segments/<segment>`, or a folder of groups inside a run.

    Raises:
        InputError: no such directory, or one of another kind.
        UnsealedError: an unfinished `groups/` directory (of `sprl rollout`).
        CorruptionError: two groups with one id.
    """
    if not path.is_dir():
        raise InputError(f"no directory {path}", "give a directory that `sprl rollout` or `sprl train-nft` wrote")
    run = _open_run_of(path)
    if run is None:
        manifest = read_manifest(path)
        if manifest.schema_name not in ("groups", "run", "segment"):
            raise InputError(
                f"{path} is a {manifest.schema_name!r} directory, not groups",
                "give a directory that `sprl rollout` or `sprl train-nft` wrote",
            )
        return GroupSource(path, True, _world(manifest.config), _roots(path))
    config = read_unfinished(run).config if (run / layout.UNFINISHED).is_file() else _sealed_config(run)
    return GroupSource(path, False, _world(config), _roots(path))


def _open_run_of(path: Path) -> Path | None:
    """The run that an unsealed `path` is, or is a part of; None when `path` answers for itself."""
    if is_sealed(path):
        return None
    return next(
        (
            folder
            for folder in (path, *path.resolve().parents[:3])
            if (folder / layout.SEGMENTS_FOLDER).is_dir() and (folder / layout.LEDGER).is_file()
        ),
        None,
    )


def _sealed_config(run: Path) -> dict[str, Any]:
    return read_manifest(run).config if is_sealed(run) else {}


def _world(config: Mapping[str, Any]) -> str:
    return str(config.get("world", WORLD_UNKNOWN))


def _roots(path: Path) -> dict[str, Path]:
    """Store folder of every finished group: `path` itself, its `groups/`, or those of its segments."""
    candidates = [path, path / layout.GROUPS_FOLDER]
    candidates += [
        folder / layout.GROUPS_FOLDER
        for folder in sorted((path / layout.SEGMENTS_FOLDER).glob("*"))
        if layout.parse_segment(folder.name) is not None
    ]
    roots: dict[str, Path] = {}
    for root in candidates:
        for group_id in GroupStore(root).finished():
            if group_id in roots:
                raise CorruptionError(
                    f"group {group_id} lies in both {roots[group_id]} and {root}", "remove one of the copies"
                )
            roots[group_id] = root
    return dict(sorted(roots.items()))
