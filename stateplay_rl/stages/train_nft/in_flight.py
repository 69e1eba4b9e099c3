"""What a batch in flight has finished: a file a verdict, written by the rank that got it, the moment it is there.

The segment's line logs are written by rank 0 in the order of the batch's conditions, once all verdicts are in; so they
do not depend on who answered first. Until then a kill must not lose a verdict: it may have been paid for.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from stateplay_rl.distributed import Processes
from stateplay_rl.errors import CorruptionError, UsageError
from stateplay_rl.judges.base import Judge
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.verdicts import resume_lines
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import write_json
from stateplay_rl.stores.foreign import parse_json

Role = Literal["training", "audit", "referee"]
"""For whom a judge works: its scores train, are compared with those, or are only watched."""
ROLES: tuple[Role, ...] = get_args(Role)
LOGS: Mapping[Role, str] = {"training": layout.VERDICTS, "audit": layout.AUDITS, "referee": layout.REFEREE}
Lines = Mapping[Role, Mapping[str, Mapping[str, Any]]]
"""Verdict lines by role and group id."""


@dataclass(frozen=True)
class Judges:
    """Who looks at a group: the judge whose scores train, the auditing one, and the referee that is only watched."""

    training: Judge
    audit: Judge | None = None
    referee: Judge | None = None

    def all(self) -> tuple[Judge, ...]:
        """Every judge once."""
        found = (self.training, self.audit, self.referee)
        return tuple(judge for judge in found if judge is not None)

    def by_role(self, *, audited: bool) -> dict[Role, Judge]:
        """Judges of one group; the auditing one only when the group is audited."""
        found: dict[Role, Judge] = {"training": self.training}
        if audited and self.audit is not None:
            found["audit"] = self.audit
        if self.referee is not None:
            found["referee"] = self.referee
        return found


class InFlight:
    """`in_flight/` of a segment; empty between batches, gone when the segment is sealed.

    Args:
        segment: the segment's folder.
    """

    def __init__(self, segment: Path) -> None:
        self._segment = segment
        self.folder = segment / layout.IN_FLIGHT_FOLDER

    def write(self, role: Role, line: Mapping[str, Any]) -> None:
        """Keep one verdict.

        Raises:
            OutsideError: disk full or read-only.
        """
        write_json(self._file(role, line["group_id"]), dict(line))

    def has(self, role: Role, group_id: str) -> bool:
        """Whether a verdict of the batch in flight is on disk."""
        return self._file(role, group_id).is_file()

    def known(self, role: Role, judge: Judge) -> dict[str, Mapping[str, Any]]:
        """Verdicts on disk by group id: those of the log and those in flight.

        Raises:
            UsageError: another judge, or another version of it, gave them.
            CorruptionError: a damaged file.
        """
        lines: dict[str, Mapping[str, Any]] = {
            line["group_id"]: line for line in resume_lines(self._segment / LOGS[role], judge)
        }
        for file in sorted(self.folder.glob(f"*.{role}.json")):
            try:
                line = parse_json(file.read_bytes())
                judge_of_line = (line["judge_id"], line["protocol_sha256"])
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise CorruptionError(f"{file} is damaged: {error}", "remove it: the group is judged again") from error
            if judge_of_line != (judge.judge_id, judge.protocol_sha256):
                raise UsageError(
                    f"{file} was judged by {judge_of_line[0]}, now the judge is {judge.judge_id}: scores of two "
                    "judges are never mixed",
                    "resume with the judge that began the segment",
                )
            lines.setdefault(line["group_id"], line)
        return lines

    def clear(self) -> None:
        """Forget the batch in flight: its lines are in the logs."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, role: Role, group_id: str) -> Path:
        return self.folder / f"{layout.safe_name(group_id, 'group_id')}.{role}.json"


def read_known(in_flight: InFlight, judges: Judges, processes: Processes) -> Lines:
    """Rank 0's list of verdicts on disk, on every rank: no rank asks for one that another has."""

    def read() -> Lines:
        return {role: in_flight.known(role, judge) for role, judge in judges.by_role(audited=True).items()}

    return processes.broadcast(on_main(processes, read))
