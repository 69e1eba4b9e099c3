"""What a command says and records about the paid requests of its judge."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.judges.base import Judge
from stateplay_rl.judges.budget import price_of
from stateplay_rl.judges.costs import CostTable, cost_table
from stateplay_rl.judges.openai_judge import OpenAIJudge
from stateplay_rl.judges.remote import remote_judges
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import require_space, sha256_bytes
from stateplay_rl.stores.foreign import parse_json
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.requests import read_attempts
from stateplay_rl.stores.sealed import is_sealed

EXPECTED_OUTPUT_TOKENS = 600
"""A JSON object with four scores and a sentence each, and some reasoning."""


@dataclass(frozen=True)
class Estimate:
    """What scoring would take, from the payload of one group.

    Args:
        image_bytes: JPEG bytes of one group.
        cost: in the price table's currency, None without a price.
    """

    groups: int
    images: int
    image_bytes: int
    input_tokens: int
    cost: float | None

    def sentence(self, judge: OpenAIJudge) -> str:
        """For people."""
        cost = (
            f"about {self.cost:.2f} in all"
            if self.cost is not None
            else f"no price for {judge.spec.model} in judge.requests.prices"
        )
        return (
            f"{judge.judge_id} at {judge.spec.base_url}: {self.groups} groups, one request each (one more "
            f"where an answer cannot be read, none where it was paid before), "
            f"{self.images} pictures and {self.image_bytes / 1e6:.1f} MB each, "
            f"{self.groups * self.image_bytes / 1e9:.2f} GB kept in {judge.store_folder}, "
            f"about {self.input_tokens:,} input tokens each; {cost}"
        )


def openai_judges(judge: Judge) -> tuple[OpenAIJudge, ...]:
    """The judges in a judge that pay for requests."""
    return tuple(remote for remote in remote_judges(judge) if isinstance(remote, OpenAIJudge))


def estimate(judge: OpenAIJudge, group: StoredGroup, groups: int) -> Estimate:
    """Build the payload of one group, keep nothing, and multiply.

    Raises:
        CorruptionError: a file of the group is damaged.
        UnfitGroupError: production mode does not show this group.
    """
    payload = judge.preview(group, sha256_bytes)
    tokens = payload.estimated_input_tokens()
    one = price_of(judge.limits.prices.get(judge.spec.model), tokens, EXPECTED_OUTPUT_TOKENS)
    cost = None if one is None else one * groups
    return Estimate(groups, len(payload.images), payload.image_bytes, tokens, cost)


def require_ready(judge: Judge, out: Path) -> None:
    """Refuse before anything is written what every request would be refused for; a finished output asks nothing.

    Raises:
        UsageError: no usable key.
    """
    if not is_sealed(out):
        for remote in remote_judges(judge):
            remote.require_ready()


def require_room(judge: OpenAIJudge, found: Estimate) -> None:
    """Refuse to begin what does not fit on the disk.

    Raises:
        OutsideError: not enough space for the pictures.
    """
    require_space(judge.store_folder, found.groups * found.image_bytes)


def costs_of(judges: Iterable[Judge], group_ids: Collection[str]) -> CostTable | None:
    """What these groups have cost with these judges, over all commands; None when none of them is paid."""
    remotes = [remote for judge in judges for remote in openai_judges(judge)]
    if not remotes:
        return None
    protocols = {remote.protocol_sha256 for remote in remotes}
    attempts = [
        attempt
        for folder in sorted({remote.store_folder for remote in remotes})
        if (folder / layout.REQUESTS).is_file()
        for attempt in read_attempts(folder, group_ids)
        if attempt.protocol_sha256 in protocols
    ]
    return cost_table(attempts)


def protocol_facts(judge: Judge, out: Path) -> dict[str, Any]:
    """What a manifest says of its paid judges: the whole protocol, and where the requests lie."""
    return {
        remote.judge_id: {
            **remote.protocol.facts,
            "request": remote.fields.values,
            "protocol_sha256": remote.protocol_sha256,
            "requests": os.path.relpath(os.path.realpath(remote.store_folder), os.path.realpath(out)),
        }
        for remote in openai_judges(judge)
    }


def probe_warnings(judge: Judge, minimum: float) -> list[str]:
    """What a command that trusts this judge should say first; empty when its probe was good.

    Args:
        judge: the judge.
        minimum: smallest signal-to-noise number that is trusted.
    """
    warnings = []
    for remote in openai_judges(judge):
        file = remote.store_folder / layout.probe_file(remote.protocol_sha256)
        if not file.is_file():
            warnings.append(f"{remote.judge_id} was never probed with this protocol: `sprl score GROUPS --probe`")
            continue
        found = parse_json(file.read_bytes())
        ratio = found.get("signal_to_noise")
        weak = not found.get("enough") or (ratio is not None and ratio < minimum)
        if weak:
            number = "no signal" if ratio is None else f"signal to noise {ratio:.2f}"
            warnings.append(f"{remote.judge_id} was probed on {found.get('utc')}: {number}, less than {minimum:g}")
    return warnings
