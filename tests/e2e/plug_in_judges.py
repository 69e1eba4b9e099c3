"""Judges from outside of the package, as a user would write them."""

from __future__ import annotations

from typing import Any

from stateplay_rl.judges.base import GroupVerdict, scored
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.video import decode_mp4
from tests.stages.train_nft.gates import PROTOCOL


class StandIn:
    """Stands where the student will stand: its protocol is the one that the planted gates name."""

    judge_id = "stand-in"
    protocol_sha256 = PROTOCOL

    def __init__(self, **options: Any) -> None:
        self.options = options

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        means = [float(decode_mp4(group.candidate_video(k)).mean()) for k in range(group.record.candidates)]
        return scored([round((mean * 37.0) % 100.0, 3) for mean in means])
