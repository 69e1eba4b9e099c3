"""A run's chain of segments: ``000-a``, ``001-a+280``, ``002-c``, each sealed by its own manifest.

Only the last may be open. Readers get the groups of sealed segments and the finished groups of the open one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.errors import CorruptionError, InputError, OutputError
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.sealed import is_sealed, read_manifest


@dataclass(frozen=True)
class Segment:
    """One segment of a run. `extension` is the number of added conditions, 0 for a first segment."""

    index: int
    kind: str
    extension: int
    path: Path
    sealed: bool

    @property
    def groups(self) -> GroupStore:
        """Its groups; a sealed segment's are all finished."""
        return GroupStore(self.path / layout.GROUPS_FOLDER)

    @property
    def scores_path(self) -> Path:
        """Its score table."""
        return self.path / layout.SCORES


def list_segments(run: Path) -> tuple[Segment, ...]:
    """Segments of a run in order.

    Raises:
        CorruptionError: a gap in the numbers, an open segment before the last, or a foreign name.
    """
    folder = run / layout.SEGMENTS_FOLDER
    if not folder.is_dir():
        return ()
    found: list[Segment] = []
    for path in sorted(p for p in folder.iterdir() if not layout.is_private(p.name)):
        parsed = layout.parse_segment(path.name)
        if parsed is None:
            raise CorruptionError(f"{path} is not a segment's name", "move it out of the run")
        found.append(Segment(*parsed, path, is_sealed(path)))
    found.sort(key=lambda segment: segment.index)
    for position, segment in enumerate(found):
        if segment.index != position:
            raise CorruptionError(f"{folder}: segment {position:03d} is missing", "restore it from a copy")
        if not segment.sealed and position < len(found) - 1:
            raise CorruptionError(f"{segment.path} is not sealed but a later one exists", "restore it from a copy")
    return tuple(found)


def next_segment(run: Path, kind: str, extension: int = 0, *, unsealed: Segment | None = None) -> Path:
    """Folder of the segment to open now: the open one when it fits, else the next number.

    Args:
        run: the run directory.
        kind: ``a``, ``c``, ... (the stage).
        extension: number of added conditions (``--extend``), 0 otherwise.
        unsealed: a sealed segment whose run is not sealed yet: it counts as open.

    Raises:
        OutputError: another segment is still open.
    """
    segments = list_segments(run)
    if segments and (not segments[-1].sealed or segments[-1] == unsealed):
        last = segments[-1]
        if (last.kind, last.extension) != (kind, extension):
            wanted = layout.segment_folder(len(segments), kind, extension)
            raise OutputError(
                f"{last.path} is still open, {wanted} cannot begin",
                "finish it first: run it again with --resume",
            )
        return last.path
    return run / layout.SEGMENTS_FOLDER / layout.segment_folder(len(segments), kind, extension)


def open_segment(
    run: OutputDirectory,
    kind: str,
    *,
    extension: int = 0,
    config: FrozenConfig,
    inputs: Mapping[str, Path],
    last_is_sealed: bool = False,
) -> OutputDirectory:
    """Begin the next segment, or go on with the open one, under the run's lock.

    Args:
        run: the run directory, open and locked.
        kind: the stage.
        extension: number of added conditions.
        config: resolved config of this segment.
        inputs: what this segment reads.
        last_is_sealed: the run's last segment was sealed, the run was not: that one again, sealed as it is.

    Raises:
        OutputError: another segment is open.
        UsageError: the open segment was begun with another config or other inputs.
        ValueError: the run is not locked by us.
    """
    if not run.lock.held:
        raise ValueError(f"segments of {run.path} are opened under the run's lock only")
    last = list_segments(run.path)[-1] if last_is_sealed else None
    path = next_segment(run.path, kind, extension, unsealed=last)
    return OutputDirectory.open(
        path,
        schema="segment",
        version=layout.SCHEMAS["segment"],
        command=run.record.command,
        config=config,
        inputs=inputs,
        resume=True,
        overwrite=False,
    )


def read_groups(run: Path) -> Iterator[StoredGroup]:
    """All finished groups of a run in order of segment and id; the caller records their hashes.

    Raises:
        InputError: not a run.
        CorruptionError: a sealed segment's group differs from that segment's manifest.
    """
    segments = list_segments(run)
    if not segments:
        raise InputError(f"{run} has no {layout.SEGMENTS_FOLDER} folder: it is not a run", "check the path")
    for segment in segments:
        recorded = read_manifest(segment.path, schema="segment").files if segment.sealed else None
        for group_id in segment.groups.finished():
            group = segment.groups.read(group_id)
            name = f"{layout.GROUPS_FOLDER}/{group_id}/{layout.GROUP}"
            if recorded is not None and (name not in recorded or recorded[name].sha256 != group.sha256):
                raise CorruptionError(
                    f"{segment.path / name} does not match the segment's manifest", "restore it from a copy"
                )
            yield group


def group_hashes(run: Path) -> dict[str, str]:
    """Group id to the hash of its ``group.json``, for the lineage of whoever reads a run."""
    return {group.record.group_id: group.sha256 for group in read_groups(run)}
