"""Groups: all candidates of one condition with their clean latents, videos, seeds and hashes.

A group is finished once its ``group.json``, written last, exists. A folder without it is replaced.
Shapes: C latent channels, f latent slots, H W latent size, T frames, h w picture size.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores import atomic, layout, tables
from stateplay_rl.stores.file_hasher import FileHasher
from stateplay_rl.stores.foreign import checked, parse_json
from stateplay_rl.stores.hashing import hash_frames, hash_tensor
from stateplay_rl.stores.pictures import png_bytes
from stateplay_rl.stores.video import encode_mp4

if TYPE_CHECKING:
    from torch import Tensor

GROUP_VERSION = 1
_HINT = "restore the group's folder from a copy, or roll the condition out again"


@dataclass(frozen=True)
class GroupRecord:
    """Facts of a group; the order of candidates is that of `seeds`.

    Args:
        buttons: held action rows, [rows][11] in {0, 1}.
        action_bin_edges: first and past-the-last action row of each latent slot.
        latents_sha256: `hash_tensor` of each candidate's latents; filled in by `GroupStore.write`.
        frames_sha256: `hash_frames` of each candidate's frames before encoding; filled in likewise.
    """

    group_id: str
    condition_id: str
    batch: int
    policy_sha256: str
    world_sha256: str
    sampler: str
    sampling_steps: int
    seeds: tuple[int, ...]
    prompt: str
    fps: float
    frames: int
    latent_frames: int
    buttons: tuple[tuple[int, ...], ...]
    action_bin_edges: tuple[tuple[int, int], ...]
    mechanics_class: str
    has_reference: bool = False
    latents_sha256: tuple[str, ...] = ()
    frames_sha256: tuple[str, ...] = ()

    @property
    def candidates(self) -> int:
        """Number of candidates K."""
        return len(self.seeds)


@dataclass(frozen=True)
class StoredGroup:
    """A finished group on disk. `sha256` is the hash of its ``group.json``, `files` those of its files."""

    record: GroupRecord
    folder: Path
    sha256: str
    files: dict[str, str]

    def candidate_video(self, candidate: int) -> Path:
        """Video file of candidate 0..K-1."""
        return self.folder / layout.candidate_video_file(self._index(candidate))

    def reference_video(self) -> Path | None:
        """Video of the real clip, None when the condition has none."""
        return self.folder / layout.REFERENCE_VIDEO if self.record.has_reference else None

    def first_frame_path(self) -> Path:
        """First frame as the model got it."""
        return self.folder / layout.FIRST_FRAME

    def latents(self, candidate: int) -> Tensor:
        """Clean latents of a candidate, bfloat16 [C, f, H, W].

        Raises:
            CorruptionError: missing, damaged, or not what the group records.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        file = self.folder / layout.candidate_latents_file(self._index(candidate))
        try:
            # Bytes first: a file may shrink while it is mapped.
            latents_CfHW: Tensor = load(file.read_bytes())["latents"]
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise CorruptionError(f"{file} cannot be read: {error}", _HINT) from error
        if hash_tensor(latents_CfHW) != self.record.latents_sha256[candidate]:
            raise CorruptionError(f"{file} does not match field 'latents_sha256' of {layout.GROUP}", _HINT)
        return latents_CfHW

    def verify(self) -> None:
        """Re-hash every file of the group.

        Raises:
            CorruptionError: a file is missing or differs.
        """
        for name, sha256 in self.files.items():
            file = self.folder / name
            if not file.is_file():
                raise CorruptionError(f"{file} is missing", _HINT)
            if atomic.sha256_file(file) != sha256:
                raise CorruptionError(f"{file} does not match its sha256 in {layout.GROUP}", _HINT)

    def _index(self, candidate: int) -> int:
        if not 0 <= candidate < self.record.candidates:
            raise IndexError(f"candidate {candidate} of {self.record.candidates}")
        return candidate


class GroupStore:
    """A folder of groups, one sub-folder each.

    Args:
        root: the folder; made when the first group is written.
        hasher: of the output directory that `root` lies in: saves reading every file again when it is sealed.
    """

    def __init__(self, root: Path, hasher: FileHasher | None = None) -> None:
        self.root = root
        self._hasher = hasher

    def folder(self, group_id: str) -> Path:
        """Folder of a group."""
        return self.root / layout.safe_name(group_id, "group_id")

    def exists(self, group_id: str) -> bool:
        """Whether the group is finished."""
        return (self.folder(group_id) / layout.GROUP).is_file()

    def finished(self) -> tuple[str, ...]:
        """Ids of the finished groups, sorted."""
        if not self.root.is_dir():
            return ()
        return tuple(sorted(entry.parent.name for entry in self.root.glob(f"*/{layout.GROUP}")))

    def write(
        self,
        record: GroupRecord,
        first_frame: np.ndarray,
        candidate_latents: Sequence[Tensor],
        candidate_frames: Sequence[np.ndarray],
        reference_frames: np.ndarray | None = None,
    ) -> StoredGroup:
        """Write a group, ``group.json`` last.

        Args:
            record: facts; hashes left empty are filled in, given ones must agree.
            first_frame: uint8 [h, w, 3].
            candidate_latents: K bfloat16 tensors [C, f, H, W].
            candidate_frames: K uint8 arrays [T, h, w, 3].
            reference_frames: uint8 [T, h, w, 3] of the real clip, or None.

        Raises:
            ValueError: numbers of candidates or given hashes disagree, or the group is finished already.
            OutsideError: disk full or read-only; the group stays unfinished.
        """
        complete = _completed(record, candidate_latents, candidate_frames, reference_frames)
        if self.exists(record.group_id):
            raise ValueError(f"group {record.group_id} is already finished")
        folder = self.folder(record.group_id)
        with atomic.disk_errors(folder, sum(latents.nbytes for latents in candidate_latents)):
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
            atomic.fsync_folder(self.root)
        files = {layout.FIRST_FRAME: atomic.write_bytes(folder / layout.FIRST_FRAME, png_bytes(first_frame))}
        for k, (latents_CfHW, frames_ThwC) in enumerate(zip(candidate_latents, candidate_frames, strict=True)):
            name = layout.candidate_latents_file(k)
            files[name] = atomic.write_bytes(folder / name, latents_bytes(latents_CfHW))
            files[layout.candidate_video_file(k)] = _write_video(
                folder / layout.candidate_video_file(k), frames_ThwC, record.fps
            )
        if reference_frames is not None:
            path = folder / layout.REFERENCE_VIDEO
            files[layout.REFERENCE_VIDEO] = _write_video(path, reference_frames, record.fps)
        value = {"version": GROUP_VERSION, **asdict(complete), "files": files}
        sha256 = atomic.write_json(folder / layout.GROUP, value)
        if self._hasher is not None:
            for name, file_sha256 in {**files, layout.GROUP: sha256}.items():
                self._hasher.record(folder / name, file_sha256)
        return StoredGroup(complete, folder, sha256, files)

    def read(self, group_id: str) -> StoredGroup:
        """A finished group.

        Raises:
            InputError: no such finished group, or a newer version.
            CorruptionError: ``group.json`` is damaged; the field is named.
        """
        file = self.folder(group_id) / layout.GROUP
        try:
            data = file.read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"{self.root} has no finished group {group_id!r}", "check the group id") from error
        record, files = _parse_group(file, data)
        if record.group_id != group_id:
            raise CorruptionError(f"{file}: field 'group_id' is {record.group_id!r}", _HINT)
        return StoredGroup(record, file.parent, atomic.sha256_bytes(data), files)

    def hashes(self) -> dict[str, str]:
        """Hash of each finished group's ``group.json``: what a reader of an open run records."""
        return {name: atomic.sha256_file(self.root / name / layout.GROUP) for name in self.finished()}


def latents_bytes(latents_CfHW: Tensor) -> bytes:
    """Safetensors file of one candidate's clean latents.

    Raises:
        ValueError: not bfloat16 [C, f, H, W], or with NaN or infinity.
    """
    import torch
    from safetensors.torch import save

    if latents_CfHW.dtype != torch.bfloat16 or latents_CfHW.ndim != 4:
        raise ValueError(f"latents must be bfloat16 [C, f, H, W], got {latents_CfHW.dtype} {latents_CfHW.shape}")
    if not bool(torch.isfinite(latents_CfHW).all()):
        raise ValueError("latents hold NaN or infinity")
    data: bytes = save({"latents": latents_CfHW.detach().cpu().contiguous()})
    return data


def _write_video(path: Path, frames_ThwC: np.ndarray, fps: float) -> str:
    encode_mp4(path, frames_ThwC, fps)
    return atomic.sha256_file(path)


def _completed(
    record: GroupRecord,
    latents: Sequence[Tensor],
    frames: Sequence[np.ndarray],
    reference_frames: np.ndarray | None,
) -> GroupRecord:
    """The record with its hashes, checked against what was given."""
    if not len(latents) == len(frames) == record.candidates > 0:
        raise ValueError(f"{record.candidates} seeds, {len(latents)} latents, {len(frames)} videos")
    complete = replace(
        record,
        has_reference=reference_frames is not None,
        latents_sha256=tuple(hash_tensor(x) for x in latents),
        frames_sha256=tuple(hash_frames(x) for x in frames),
    )
    for name in ("latents_sha256", "frames_sha256"):
        if getattr(record, name) not in ((), getattr(complete, name)):
            raise ValueError(f"group {record.group_id}: given {name} does not match the contents")
    return complete


def _parse_group(file: Path, data: bytes) -> tuple[GroupRecord, dict[str, str]]:
    try:
        raw: dict[str, Any] = parse_json(data)
        version = raw.pop("version")
        if version > GROUP_VERSION:
            raise InputError(f"{file} has version {version}, this sprl reads {GROUP_VERSION}", "upgrade stateplay-rl")
        files = {layout.safe_name(name, "file"): str(sha256) for name, sha256 in raw.pop("files").items()}
        for name in ("seeds", "latents_sha256", "frames_sha256"):
            raw[name] = tuple(raw[name])
        for name in ("buttons", "action_bin_edges"):
            raw[name] = tuple(tuple(row) for row in raw[name])
        record = checked(GroupRecord(**raw))
    except KeyError as error:
        raise CorruptionError(f"{file} lacks field {error.args[0]!r}", _HINT) from error
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise CorruptionError(f"{file} is damaged: {error}", _HINT) from error
    if not len(record.latents_sha256) == len(record.frames_sha256) == record.candidates > 0:
        raise CorruptionError(f"{file}: fields 'seeds' and 'latents_sha256' differ in length", _HINT)
    return record, files


GROUP_COLUMNS = {
    "group_id": "str",
    "condition_id": "str",
    "batch": "int",
    "policy_sha256": "str",
    "world_sha256": "str",
    "sampler": "str",
    "sampling_steps": "int",
    "seeds": "int[]",
    "status": "str",
    "reason": "str?",
    "group_sha256": "str?",
}


@dataclass(frozen=True)
class GroupRow:
    """A row of ``groups.parquet``: status ``finished`` with the group's hash, or ``failed`` with a reason."""

    group_id: str
    condition_id: str
    batch: int
    policy_sha256: str
    world_sha256: str
    sampler: str
    sampling_steps: int
    seeds: tuple[int, ...]
    status: str
    reason: str | None = None
    group_sha256: str | None = None

    @classmethod
    def of(cls, group: StoredGroup) -> GroupRow:
        """Row of a finished group."""
        same = ("group_id", "condition_id", "batch", "policy_sha256", "world_sha256", "sampler")
        facts = {name: getattr(group.record, name) for name in (*same, "sampling_steps", "seeds")}
        return cls(**facts, status="finished", group_sha256=group.sha256)


def write_groups_parquet(path: Path, rows: Sequence[GroupRow]) -> str:
    """Write the index of a groups directory, sorted by batch and group id; returns its sha256."""
    ordered = sorted(rows, key=lambda row: (row.batch, row.group_id))
    return tables.write_table(path, GROUP_COLUMNS, [{**vars(row), "seeds": list(row.seeds)} for row in ordered])


def read_groups_parquet(path: Path) -> tuple[GroupRow, ...]:
    """Rows of ``groups.parquet``.

    Raises:
        CorruptionError: damaged, or with wrong columns.
    """
    rows = tables.read_table(path, GROUP_COLUMNS)
    return tuple(GroupRow(**{**row, "seeds": tuple(row["seeds"])}) for row in rows)
