"""The referee as a judge: scores groups of arena in-process."""

from __future__ import annotations

import inspect

import numpy as np

from stateplay_rl.arena import events, game, moves, opponent, pixels, referee, state
from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.judges.base import GroupVerdict, scored
from stateplay_rl.stores.atomic import sha256_bytes, sha256_json
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.pictures import read_picture
from stateplay_rl.stores.video import decode_mp4


def _constants() -> dict[str, float | str]:
    """Every number that decides a score, by name."""
    found: dict[str, float | str] = {}
    for module in (referee, pixels, events):
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, int | float):
                found[f"{module.__name__}.{name}"] = value
    # The truth that videos are compared with: another move table or script would change scores.
    for module in (game, moves, opponent, state):
        found[f"{module.__name__} source"] = sha256_bytes(inspect.getsource(module).encode())
    return found


class RefereeJudge:
    """Scores 0..100 from pixels; needs neither network nor model.

    An unreadable candidate (a broken picture) scores 0, with ``readable: false`` in the details. A missing
    or damaged file is no score at all: it raises.
    """

    judge_id = "arena-referee"

    def __init__(self) -> None:
        self.protocol_sha256 = sha256_json({"judge": self.judge_id, "constants": _constants()})

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        """Score every candidate of a group against the engine.

        Raises:
            CorruptionError: a picture or video of the group is missing or damaged.
            InputError: the group is not of arena.
        """
        record = group.record
        first_frame = read_picture(group.first_frame_path())
        truth = referee.true_trajectory(first_frame, np.array(record.buttons, np.uint8), record.prompt, record.frames)
        reports: list[referee.RefereeReport] = []
        for k in range(record.candidates):
            path = group.candidate_video(k)
            if not path.is_file():
                raise CorruptionError(f"{path} is missing", "roll the group out again")
            video = decode_mp4(path)
            if len(video) != record.frames:
                raise CorruptionError(
                    f"{path} has {len(video)} frames, group.json says {record.frames}",
                    "roll the group out again",
                )
            try:
                reports.append(referee.compare(video, truth))
            except InputError as error:
                raise InputError(f"{path}: {error.what}", "the referee judges arena's videos only") from error
        return scored(
            [report.score for report in reports],
            details={"candidates": [report.details() for report in reports]},
        )
