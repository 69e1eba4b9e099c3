"""Scores: null with a reason, in range, every candidate once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores import tables
from stateplay_rl.stores.scores import SCORE_COLUMNS, ScoreRow, ScoreTable


def row(group_id: str = "g", candidate: int = 0, **changes: Any) -> ScoreRow:
    facts = {
        "score": 50.0,
        "status": "scored",
        "reason": None,
        "judge_id": "referee",
        "protocol_sha256": "p",
        "request_id": None,
    }
    return ScoreRow(group_id, candidate, **(facts | changes))


def failed(group_id: str, candidate: int, status: str = "failed") -> ScoreRow:
    return row(group_id, candidate, score=None, status=status, reason="refused")


def test_round_trip_in_a_fixed_order(tmp_path: Path) -> None:
    rows = [row("b", 1), row("b", 0, score=0.0), failed("a", 0), row("a", 1, score=100.0)]
    ScoreTable(rows).write(tmp_path / "s.parquet")
    table = ScoreTable.read(tmp_path / "s.parquet")
    assert [(r.group_id, r.candidate) for r in table.rows] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert table.group("a").scores == (None, 100.0)
    assert table.group("a").status == "failed"
    assert not table.group("a").complete
    assert table.group("b").complete
    assert [g.group_id for g in table] == ["a", "b"]
    assert "b" in table
    assert len(table) == 4
    with pytest.raises(InputError, match="no scores for group 'z'"):
        table.group("z")


@pytest.mark.parametrize(
    "changes",
    [
        {"score": None},
        {"score": float("nan")},
        {"score": 100.5},
        {"score": -0.1},
        {"status": "failed"},
        {"status": "failed", "score": None},
        {"status": "in_doubt", "score": 0.0, "reason": "timeout"},
        {"status": "maybe"},
    ],
)
def test_a_missing_score_is_null_with_a_reason(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="group g, candidate 0"):
        row(**changes)


def test_in_doubt_outranks_failed() -> None:
    assert ScoreTable([failed("a", 0), failed("a", 1, "in_doubt"), row("a", 2)]).group("a").status == "in_doubt"


@pytest.mark.parametrize("candidates", [(0, 0), (1,), (0, 2)])
def test_every_candidate_once(candidates: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="field 'candidate'"):
        ScoreTable([row("g", c) for c in candidates])


def test_bad_rows_on_disk_are_named(tmp_path: Path) -> None:
    file = tmp_path / "s.parquet"
    tables.write_table(file, SCORE_COLUMNS, [vars(row()) | {"score": 500.0}])
    with pytest.raises(CorruptionError, match="field 'score' is 500"):
        ScoreTable.read(file)
    with pytest.raises(InputError, match="does not exist"):
        ScoreTable.read(tmp_path / "no.parquet")
