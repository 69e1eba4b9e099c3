"""Stored groups without files, and judges that answer what they are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stateplay_rl.judges.base import GroupVerdict
from stateplay_rl.stores.groups import GroupRecord, StoredGroup


def stored_group(group_id: str = "g0", candidates: int = 4, mechanics_class: str = "normal") -> StoredGroup:
    record = GroupRecord(
        group_id=group_id,
        condition_id=f"c-{group_id}",
        batch=0,
        policy_sha256="0" * 64,
        world_sha256="1" * 64,
        sampler="euler",
        sampling_steps=2,
        seeds=tuple(range(candidates)),
        prompt="walks forward",
        fps=20.0,
        frames=5,
        latent_frames=2,
        buttons=((0,) * 11,) * 5,
        action_bin_edges=((0, 3), (3, 5)),
        mechanics_class=mechanics_class,
        latents_sha256=("2" * 64,) * candidates,
        frames_sha256=("3" * 64,) * candidates,
    )
    return StoredGroup(record, Path("nowhere"), "4" * 64, {})


class FakeJudge:
    """Answers with a fixed verdict, or with what a function makes of the group."""

    def __init__(self, verdict: GroupVerdict | Callable[[StoredGroup], GroupVerdict], judge_id: str = "fake") -> None:
        self.judge_id = judge_id
        self.protocol_sha256 = judge_id.encode().hex().ljust(64, "0")[:64]
        self._verdict = verdict

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        return self._verdict(group) if callable(self._verdict) else self._verdict
