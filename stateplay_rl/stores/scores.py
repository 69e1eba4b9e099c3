"""Scores: one row a candidate. A missing score is null with a reason, never 0 and never NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores import tables

ScoreStatus = Literal["scored", "failed", "in_doubt"]
SCORE_MIN, SCORE_MAX = 0.0, 100.0

SCORE_COLUMNS = {
    "group_id": "str",
    "candidate": "int",
    "score": "float?",
    "status": "str",
    "reason": "str?",
    "judge_id": "str",
    "protocol_sha256": "str",
    "request_id": "str?",
}


@dataclass(frozen=True)
class ScoreRow:
    """Score of one candidate, in points 0..100.

    Raises:
        ValueError: a scored row without a finite score in range, or another row with a score or no reason.
    """

    group_id: str
    candidate: int
    score: float | None
    status: ScoreStatus
    reason: str | None
    judge_id: str
    protocol_sha256: str
    request_id: str | None

    def __post_init__(self) -> None:
        where = f"group {self.group_id}, candidate {self.candidate}"
        if self.status not in get_args(ScoreStatus):
            raise ValueError(f"{where}: field 'status' is {self.status!r}")
        if self.status == "scored":
            if self.score is None or not math.isfinite(self.score) or not SCORE_MIN <= self.score <= SCORE_MAX:
                raise ValueError(f"{where}: field 'score' is {self.score}, not in 0..100")
        elif self.score is not None or not self.reason:
            raise ValueError(f"{where}: status {self.status!r} needs a null score and a reason")


@dataclass(frozen=True)
class GroupScores:
    """Scores of all candidates of a group, in the order of candidates."""

    group_id: str
    rows: tuple[ScoreRow, ...]

    @property
    def scores(self) -> tuple[float | None, ...]:
        """Points 0..100, None where missing."""
        return tuple(row.score for row in self.rows)

    @property
    def status(self) -> ScoreStatus:
        """The worst status of its rows: in_doubt, then failed, then scored."""
        found = {row.status for row in self.rows}
        return next(s for s in ("in_doubt", "failed", "scored") if s in found)

    @property
    def complete(self) -> bool:
        """Whether every candidate has a score."""
        return all(row.score is not None for row in self.rows)


class ScoreTable:
    """Rows by group, in a fixed order.

    Args:
        rows: any order; candidates of a group must be 0..K-1, each once.

    Raises:
        ValueError: a candidate twice or missing.
    """

    def __init__(self, rows: Iterable[ScoreRow]) -> None:
        self.rows = tuple(sorted(rows, key=lambda row: (row.group_id, row.candidate)))
        grouped: dict[str, list[ScoreRow]] = {}
        for row in self.rows:
            grouped.setdefault(row.group_id, []).append(row)
        for group_id, members in grouped.items():
            if [row.candidate for row in members] != list(range(len(members))):
                raise ValueError(f"group {group_id}: field 'candidate' is {[row.candidate for row in members]}")
        self._groups = {group_id: GroupScores(group_id, tuple(rows)) for group_id, rows in grouped.items()}

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._groups

    def __iter__(self) -> Iterator[GroupScores]:
        return iter(self._groups.values())

    def group(self, group_id: str) -> GroupScores:
        """Scores of a group.

        Raises:
            InputError: not in the table.
        """
        if group_id not in self._groups:
            raise InputError(f"no scores for group {group_id!r}", "score that group first: `sprl score`")
        return self._groups[group_id]

    def write(self, path: Path) -> str:
        """Write ``scores.parquet`` atomically; returns its sha256."""
        return tables.write_table(path, SCORE_COLUMNS, [vars(row) for row in self.rows])

    @classmethod
    def read(cls, path: Path) -> ScoreTable:
        """Read ``scores.parquet``.

        Raises:
            CorruptionError: damaged, wrong columns, or rows that break the rules; the field is named.
        """
        if not path.is_file():
            raise InputError(f"{path} does not exist", "give a directory that `sprl score` wrote")
        rows = tables.read_table(path, SCORE_COLUMNS)
        try:
            return cls(ScoreRow(**{**row, "status": cast(ScoreStatus, row["status"])}) for row in rows)
        except ValueError as error:
            raise CorruptionError(f"{path}: {error}", "restore it from a copy, or score again") from error
