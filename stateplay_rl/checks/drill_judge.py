"""A judge for drills: it looks at nothing, costs nothing, and gives every group its own fixed scores.

A drill asks whether a run survives a kill, not whether its candidates are good. Where the configured judge is paid,
this one stands in its place.
"""

from __future__ import annotations

from stateplay_rl.errors import CheckError
from stateplay_rl.judges.base import GroupVerdict, failed, scored
from stateplay_rl.stores.atomic import sha256_bytes
from stateplay_rl.stores.groups import StoredGroup

NAME = "stateplay_rl.checks.drill_judge:DrillJudge"
FAILED_ONE_IN = 16
"""So many groups have one without a score, as real judges leave some."""


class DrillJudge:
    """Scores from the hash of a candidate's latents: the same group always gets the same verdict."""

    judge_id = "drill"
    protocol_sha256 = sha256_bytes(b"drill judge 1")

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        """0..100 by the first bytes of each candidate's latents hash; one group in `FAILED_ONE_IN` fails."""
        hashes = group.record.latents_sha256
        if not hashes:
            raise CheckError(f"group {group.record.group_id} has no candidates", "roll it out again")
        if int(sha256_bytes("".join(hashes).encode())[:8], 16) % FAILED_ONE_IN == 0:
            return failed(len(hashes), "drill: this group is failed on purpose")
        return scored([int(sha256[:6], 16) % 101 for sha256 in hashes])
