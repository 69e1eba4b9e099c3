"""Conditions: first frames, held actions and prompts that may be sampled from.

Shapes: h w picture size, R action rows, K = 11 buttons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np

from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores import layout, tables
from stateplay_rl.stores.hashing import hash_array
from stateplay_rl.stores.manifest import Manifest, OutputDirectory, read_manifest
from stateplay_rl.stores.pictures import decode_picture, png_bytes
from stateplay_rl.stores.sealed import read_checked

Pool = Literal["pass", "heldout"]
DATA_ROOT = "data_root"  # key in manifest.extra: where clip paths start
_HINT = "restore it from a copy, or run `sprl build-conditions` again"
_CLIPS_HINT = (
    "put the clips back there (the place is kept relative to the conditions), or build the conditions again where "
    "they lie now: sprl build-conditions --csv FILE --data-root FOLDER"
)

CONDITION_COLUMNS = {
    "condition_id": "str",
    "clip": "str?",
    "prompt": "str",
    "mechanics_class": "str",
    "distribution": "str",
    "npc_category": "str",
    "strategy": "str",
    "fps": "float",
    "frames": "int",
    "latent_frames": "int",
    "action_rows": "int",
    "action_bin_edges": "int[][]",
    "first_frame_sha256": "str",
    "actions_sha256": "str",
    "cluster_id": "int",
    "pool": "str",
    "student_split": "str",
    "order": "int",
    "warnings": "str[]",
}
REJECTED_COLUMNS = {"row": "int", "path": "str", "reason": "str", "detail": "str"}
ACTION_COLUMNS = {
    "frame_id": "int32",
    **dict.fromkeys(BUTTONS, "int32"),
    **{f"held_{name}": "int32" for name in BUTTONS},
}


@dataclass(frozen=True)
class ConditionRecord:
    """A row of ``conditions.parquet``.

    Args:
        condition_id: content hash.
        clip: video path relative to the data root, None for a condition without a video.
        mechanics_class: lower-case class of the player's mechanics; `distribution` is its raw value.
        npc_category: the opponent's strategy class; never mixed up with `mechanics_class`.
        frames: frames that are used; `action_rows` may be more.
        action_bin_edges: first and past-the-last action row of each latent slot.
        first_frame_sha256: `hashing.hash_frames` of the stored picture.
        actions_sha256: `hash_actions` of the raw table.
        order: position in the seeded, class-interleaved permutation.
    """

    condition_id: str
    clip: str | None
    prompt: str
    mechanics_class: str
    distribution: str
    npc_category: str
    strategy: str
    fps: float
    frames: int
    latent_frames: int
    action_rows: int
    action_bin_edges: tuple[tuple[int, int], ...]
    first_frame_sha256: str
    actions_sha256: str
    cluster_id: int
    pool: Pool
    student_split: str
    order: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class RejectedRow:
    """A row of ``rejected.parquet``: which input row was refused, and why."""

    row: int
    path: str
    reason: str
    detail: str


def hash_actions(raw_RK: np.ndarray) -> str:
    """Hash of a raw action table, independent of its integer type."""
    return hash_array(np.asarray(raw_RK).astype(np.int32))


def write_condition_files(
    out: OutputDirectory,
    condition_id: str,
    first_frame: np.ndarray,
    raw_RK: np.ndarray,
    held_RK: np.ndarray,
    states: Mapping[str, np.ndarray],
) -> None:
    """Write one condition's picture, action table and states; safe to repeat after a kill.

    Args:
        out: the conditions directory.
        condition_id: content hash.
        first_frame: uint8 [h, w, 3] as the model gets it.
        raw_RK: integers [R, 11] as in the source.
        held_RK: {0, 1} [R, 11] held over each window.
        states: evaluation columns, [R] each; empty when there are none.

    Raises:
        ValueError: shapes disagree.
    """
    rows = len(raw_RK)
    if raw_RK.shape != (rows, len(BUTTONS)) or held_RK.shape != raw_RK.shape:
        raise ValueError(f"action tables must be [rows, 11], got {raw_RK.shape} and {held_RK.shape}")
    out.write_bytes(layout.frame_file(condition_id), png_bytes(first_frame))
    raw, held = raw_RK.astype(np.int32), held_RK.astype(np.int32)
    actions = [
        {
            "frame_id": row,
            **dict(zip(BUTTONS, raw[row].tolist(), strict=True)),
            **{f"held_{name}": int(held[row, k]) for k, name in enumerate(BUTTONS)},
        }
        for row in range(rows)
    ]
    out.write_bytes(layout.actions_file(condition_id), tables.table_bytes(ACTION_COLUMNS, actions))
    columns = {name: "float" if values.dtype.kind == "f" else "int" for name, values in states.items()}
    table = [{name: values[row].item() for name, values in states.items()} for row in range(rows if states else 0)]
    if states:
        out.write_bytes(layout.states_file(condition_id), tables.table_bytes(columns, table))


def write_conditions(
    out: OutputDirectory, records: Sequence[ConditionRecord], rejected: Sequence[RejectedRow] = ()
) -> None:
    """Write ``conditions.parquet`` (by `order`) and ``rejected.parquet`` (by row).

    Raises:
        ValueError: a condition id or an order twice.
    """
    ordered = sorted(records, key=lambda record: record.order)
    for name in ("condition_id", "order"):
        if len({getattr(record, name) for record in ordered}) != len(ordered):
            raise ValueError(f"two conditions have the same {name}")
    rows = [
        {
            **vars(record),
            "action_bin_edges": [list(edge) for edge in record.action_bin_edges],
            "warnings": list(record.warnings),
        }
        for record in ordered
    ]
    out.write_bytes(layout.CONDITIONS, tables.table_bytes(CONDITION_COLUMNS, rows))
    refused = [vars(row) for row in sorted(rejected, key=lambda row: row.row)]
    out.write_bytes(layout.REJECTED, tables.table_bytes(REJECTED_COLUMNS, refused))


class ConditionStore:
    """A sealed conditions directory. Every file is checked against the manifest when it is read."""

    def __init__(self, manifest: Manifest, records: Sequence[ConditionRecord], data_root: Path | None) -> None:
        self.manifest = manifest
        self.records = tuple(sorted(records, key=lambda record: record.order))
        self.data_root = data_root
        self._by_id = {record.condition_id: record for record in self.records}

    @classmethod
    def open(cls, path: Path, data_root: Path | None = None) -> ConditionStore:
        """Open a directory.

        Args:
            path: the directory.
            data_root: where the clips lie now; default the place recorded when it was built.

        Raises:
            UnsealedError, InputError, CorruptionError: as `read_manifest`, or a damaged table.
        """
        manifest = read_manifest(path, schema="conditions")
        data = read_checked(manifest, layout.CONDITIONS)
        rows = tables.read_table(path / layout.CONDITIONS, CONDITION_COLUMNS, data)
        records = [
            ConditionRecord(
                **{
                    **row,
                    "action_bin_edges": tuple((int(a), int(b)) for a, b in row["action_bin_edges"]),
                    "warnings": tuple(row["warnings"]),
                    "pool": cast(Pool, row["pool"]),
                }
            )
            for row in rows
        ]
        if len({record.condition_id for record in records}) != len(records):
            raise CorruptionError(f"{path / layout.CONDITIONS}: column 'condition_id' has duplicates", _HINT)
        recorded = manifest.extra.get(DATA_ROOT)
        root = data_root if data_root is not None else (path / recorded if isinstance(recorded, str) else None)
        return cls(manifest, records, root)

    @property
    def root(self) -> Path:
        """The directory."""
        return self.manifest.root

    @property
    def manifest_sha256(self) -> str:
        """Hash that other directories record for this one."""
        return self.manifest.sha256

    def __len__(self) -> int:
        return len(self.records)

    def by_id(self, condition_id: str) -> ConditionRecord:
        """Record of a condition.

        Raises:
            InputError: not in this directory.
        """
        if condition_id not in self._by_id:
            raise InputError(f"{self.root} has no condition {condition_id!r}", "use the conditions of that run")
        return self._by_id[condition_id]

    def select(self, pool: Pool | None = None) -> tuple[ConditionRecord, ...]:
        """Records of a pool (None: all), by `order`."""
        return tuple(record for record in self.records if pool is None or record.pool == pool)

    def first_frame(self, condition_id: str) -> np.ndarray:
        """First frame as the model gets it, uint8 [h, w, 3]."""
        name = layout.frame_file(self.by_id(condition_id).condition_id)
        return decode_picture(read_checked(self.manifest, name), self.root / name, ("PNG",))

    def held_actions(self, condition_id: str) -> np.ndarray:
        """Buttons held over their windows, float32 [R, 11] in {0, 1}."""
        return self._actions(condition_id, "held_").astype(np.float32)

    def raw_actions(self, condition_id: str) -> np.ndarray:
        """Buttons as in the source table, int32 [R, 11]."""
        return self._actions(condition_id, "")

    def _actions(self, condition_id: str, prefix: str) -> np.ndarray:
        record = self.by_id(condition_id)
        name = layout.actions_file(condition_id)
        rows = tables.read_table(self.root / name, ACTION_COLUMNS, read_checked(self.manifest, name))
        if len(rows) != record.action_rows:
            raise CorruptionError(f"{self.root / name} has {len(rows)} rows, not {record.action_rows}", _HINT)
        return np.array([[row[prefix + b] for b in BUTTONS] for row in rows], np.int32).reshape(-1, len(BUTTONS))

    def states(self, condition_id: str) -> dict[str, np.ndarray]:
        """True game state by column, [R] each: for evaluation only. Empty when the source had none."""
        name = layout.states_file(self.by_id(condition_id).condition_id)
        if name not in self.manifest.files:
            return {}
        return tables.read_numeric(self.root / name, read_checked(self.manifest, name))

    def clip_path(self, record: ConditionRecord) -> Path | None:
        """Absolute path of the real clip, None for a condition without a video.

        Raises:
            InputError: the data root is unknown or gone, or the clip is not there or lies outside of it.
        """
        if record.clip is None:
            return None
        if self.data_root is None or not self.data_root.is_dir():
            raise InputError(f"data root {self.data_root} of {self.root} does not exist", _CLIPS_HINT)
        root = self.data_root.resolve()
        path = (root / record.clip).resolve()
        if root not in path.parents:
            raise InputError(f"clip {record.clip!r} of condition {record.condition_id} lies outside {root}", _HINT)
        if not path.is_file():
            raise InputError(f"clip {path} of condition {record.condition_id} does not exist", _CLIPS_HINT)
        return path


def read_rejected(path: Path) -> tuple[RejectedRow, ...]:
    """Rows of ``rejected.parquet`` of a conditions directory."""
    rows = tables.read_table(path / layout.REJECTED, REJECTED_COLUMNS)
    return tuple(RejectedRow(**row) for row in rows)
