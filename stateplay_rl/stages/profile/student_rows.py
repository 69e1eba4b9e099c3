"""The student's rows of the table: what they take, their floors, and why they are missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from stateplay_rl.stages.profile.ceilings import Ceilings
from stateplay_rl.stages.profile.meter import Meter
from stateplay_rl.stages.profile.record import Record
from stateplay_rl.stages.profile.rows import STUDENT_ROWS, STUDENT_TARGETS

_NEEDED = ("peft", "transformers")


def measure_student(meter: Meter, real: bool, ceilings: Ceilings, record: Record) -> None:
    """Both rows into `record`; without the extra, memory or time their reason instead."""
    lines = record.values["rows"]
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        reason = "the extra is missing: pip install 'stateplay-rl[reward]'"
        lines.update({name: {"left_out": reason} for name in STUDENT_ROWS})
        return
    from stateplay_rl.stages.profile.student import StudentWorkload

    made = Record(record.began, record.limit)
    made.part("student", lambda: StudentWorkload(meter.device, real))
    student = made.values["student"]
    if not isinstance(student, StudentWorkload):
        lines.update({name: dict(student) for name in STUDENT_ROWS})
        return
    works = (student.score, student.step)
    for name, work, floor in zip(STUDENT_ROWS, works, student.floors(ceilings), strict=True):
        # The second wants what the first has seen.
        part = Record(record.began, record.limit)
        part.part("row", partial(_measured, meter, work))
        line = {"floor": floor, **part.values["row"]}
        if "seconds" in line:
            line |= {"to_floor": line["seconds"] / floor, "tokens": student.tokens}
        if "seconds" in line and work == student.score:
            line["parts_seconds"] = student.score_in_parts()
        if real:
            line |= dict(zip(("target", "target_gib"), STUDENT_TARGETS[name], strict=True))
        lines[name] = line


def _measured(meter: Meter, work: Callable[[], None]) -> dict[str, Any]:
    return asdict(meter.measure(work, 1))
