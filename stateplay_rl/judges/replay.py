"""Scores from another `scores/` directory: the judge that costs nothing and never changes its mind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from stateplay_rl.judges.base import GroupVerdict, VerdictStatus, failed, scored
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_json
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.stores.scores import GroupScores, ScoreTable

NOT_IN_SCORES = "replay_missing"
"""Reason code of a group that the replayed directory does not hold."""


class ReplayJudge:
    """Answers by group id from a sealed `scores/` directory; a group it lacks fails with a reason.

    Args:
        scores_folder: the directory.

    Raises:
        UnsealedError, InputError, CorruptionError: it is unfinished, foreign, or damaged.
    """

    def __init__(self, scores_folder: Path) -> None:
        manifest = read_manifest(scores_folder, schema="scores", verify_files=True)
        self._table = ScoreTable.read(scores_folder / layout.SCORES)
        names = Counter(row.judge_id for row in self._table.rows)
        self.judge_id = f"replay({'+'.join(sorted(names)) or 'empty'})"
        # The rows decide the scores; where the directory lies and when it was sealed do not.
        self.protocol_sha256 = sha256_json(["replay", manifest.files[layout.SCORES].sha256])

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        """The stored verdict of this group."""
        record = group.record
        if record.group_id not in self._table:
            return failed(record.candidates, f"{NOT_IN_SCORES}: no row for group {record.group_id}")
        stored = self._table.group(record.group_id)
        if len(stored.rows) != record.candidates:
            return failed(
                record.candidates,
                f"{NOT_IN_SCORES}: {len(stored.rows)} rows for {record.candidates} candidates",
            )
        return _verdict(stored)


def _verdict(stored: GroupScores) -> GroupVerdict:
    first = stored.rows[0]
    details = {"judge_id": first.judge_id, "protocol_sha256": first.protocol_sha256}
    values = [row.score for row in stored.rows if row.score is not None]
    if len(values) == len(stored.rows):
        return scored(values, request_id=first.request_id, details=details)
    reason = next((row.reason for row in stored.rows if row.score is None and row.reason), "partial")
    status: VerdictStatus = "in_doubt" if stored.status == "in_doubt" else "failed"
    return GroupVerdict((None,) * len(stored.rows), status, reason, first.request_id, details)
