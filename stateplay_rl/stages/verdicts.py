"""Verdict lines: what a judge said of a group, one JSON object a group; used by `score` and by `train-nft`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stateplay_rl.errors import UsageError
from stateplay_rl.judges.base import Judge, checked
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.scores import ScoreRow, ScoreTable


def verdict_line(group: StoredGroup, judge: Judge) -> dict[str, Any]:
    """Judge one group.

    Raises:
        CorruptionError: a file of the group is damaged: it must stop here, not come out as a low score.
    """
    group.verify()
    verdict = checked(judge.score_group(group), group.record.candidates)
    return {
        "group_id": group.record.group_id,
        "mechanics_class": group.record.mechanics_class,
        "judge_id": judge.judge_id,
        "protocol_sha256": judge.protocol_sha256,
        "scores": list(verdict.scores),
        "status": verdict.status,
        "reason": verdict.reason,
        "request_id": verdict.request_id,
        "details": dict(verdict.details),
    }


def resume_lines(path: Path, judge: Judge) -> list[dict[str, Any]]:
    """The whole lines of an unfinished log; half a line that a kill left behind is cut off.

    Raises:
        UsageError: another judge, or another version of it, began the log.
    """
    log = LineLog(path)
    if path.is_file():
        log.truncate_to(path.read_bytes().rfind(b"\n") + 1)
    lines = log.read()
    for line in lines:
        if (line["judge_id"], line["protocol_sha256"]) != (judge.judge_id, judge.protocol_sha256):
            raise UsageError(
                f"{path.parent} was begun with judge {line['judge_id']} ({line['protocol_sha256'][:12]}), now it "
                f"is {judge.judge_id} ({judge.protocol_sha256[:12]}): scores of two judges are never mixed",
                "start over with --overwrite, or resume with the version that began it",
            )
    return lines


def write_score_table(path: Path, lines: Sequence[Mapping[str, Any]]) -> str:
    """`scores.parquet` of verdict lines, one row a candidate; returns the file's sha256."""
    rows = [
        ScoreRow(
            group_id=line["group_id"],
            candidate=candidate,
            score=score,
            status=line["status"],
            reason=line["reason"],
            judge_id=line["judge_id"],
            protocol_sha256=line["protocol_sha256"],
            request_id=line["request_id"],
        )
        for line in lines
        for candidate, score in enumerate(line["scores"])
    ]
    return ScoreTable(rows).write(path)
