"""Scores as the cards need them, with reasons and the judge's details; and where their groups lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.reporting.cards import CandidateScore, flat_details
from stateplay_rl.reporting.numbers import finite
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.jsonl import read_lines
from stateplay_rl.stores.scores import ScoreRow, ScoreTable


@dataclass(frozen=True)
class ScoreFiles:
    """Scores by group, and the class of each group where the verdicts' log says it."""

    scores: Mapping[str, tuple[CandidateScore, ...]]
    classes: Mapping[str, str]


def read_scores(folder: Path) -> ScoreFiles:
    """Scores of every group in ``scores.parquet`` of a folder, with details from its log when there is one.

    Raises:
        InputError: no such file.
        CorruptionError: damaged, or rows that break the rules.
    """
    table = ScoreTable.read(folder / layout.SCORES)
    lines = read_verdicts(folder)
    scores = {
        group.group_id: tuple(_outcome(row, lines.get(group.group_id, {})) for row in group.rows) for group in table
    }
    classes = {name: str(line["mechanics_class"]) for name, line in lines.items() if "mechanics_class" in line}
    return ScoreFiles(scores, classes)


def read_verdicts(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Lines of a folder's verdict log by group; empty without a log. A line being written is left out."""
    log = folder / layout.VERDICTS
    if not log.is_file():
        return {}
    return {str(line.get("group_id")): line for line in read_lines(log, allow_open_end=True)}


def logged_scores(folder: Path) -> dict[str, tuple[CandidateScore, ...]]:
    """Scores from the log alone: of an open segment, whose table is not written yet."""
    outcomes = {}
    for group_id, line in read_verdicts(folder).items():
        values = line.get("scores")
        status, reason = line.get("status"), line.get("reason")
        missing = f"{status}: {reason}" if reason else None
        outcomes[group_id] = tuple(
            CandidateScore(finite(value), missing, candidate_details(line, k))
            for k, value in enumerate(values if isinstance(values, list) else [])
        )
    return outcomes


def candidate_details(line: Mapping[str, Any], candidate: int) -> tuple[tuple[str, str], ...]:
    """What the judge said about one candidate, as names and texts."""
    told = line.get("details")
    own = told.get("candidates") if isinstance(told, Mapping) else None
    if not isinstance(own, list) or candidate >= len(own):
        return ()
    return flat_details(own[candidate])


def _outcome(row: ScoreRow, line: Mapping[str, Any]) -> CandidateScore:
    details = [("status", row.status), ("judge", row.judge_id)]
    if row.request_id:
        details.append(("request", row.request_id))
    details += candidate_details(line, row.candidate)
    reason = f"{row.status}: {row.reason}" if row.reason else None
    return CandidateScore(row.score, reason, tuple(details))


def group_stores(place: Path) -> tuple[GroupStore, ...]:
    """The stores below a directory: itself, its ``groups/``, and those of its segments."""
    segments = sorted((place / layout.SEGMENTS_FOLDER).glob("*"))
    folders = [place, *(folder / layout.GROUPS_FOLDER for folder in (place, *segments))]
    return tuple(store for store in map(GroupStore, folders) if store.finished())
