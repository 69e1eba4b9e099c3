"""What a segment will write, by what and where; and whether there is room."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.stages.judge_choice import requests_folder
from stateplay_rl.stages.train_nft.estimates import Evaluations
from stateplay_rl.stages.train_nft.inputs import HAND_MADE
from stateplay_rl.stages.train_nft.paid_requests import PaidGroups
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stages.train_nft.sizes import FLOAT32, Sizes
from stateplay_rl.stores.atomic import nearest_existing, require_space

CHECKPOINT_COPIES = 4
"""live, old and two moments."""
JPEG_BYTES = 0.3
"""Per pixel at quality 90: the real game's first frames take 0.27 to 0.31."""
REQUEST_RECORD_BYTES, IMAGE_RECORD_BYTES = 25_000, 700
"""Texts and answer of a stored request; its line about each picture, and the picture's file beyond its pixels."""


@dataclass(frozen=True)
class Need:
    """Bytes that go to one place."""

    place: Path
    bytes: float


def needs_of(
    config: TrainNftConfig,
    sizes: Sizes,
    plan: SegmentPlan,
    evaluations: Evaluations,
    paid: Sequence[PaidGroups],
    out: Path,
) -> dict[str, Need]:
    """What a segment writes, by what."""
    heldout = evaluations.all * config.heldout.conditions
    groups = 0 if plan.kind == HAND_MADE else plan.conditions
    copies = CHECKPOINT_COPIES + (1 if config.evaluation_average.decay else 0)
    policies = 3 if config.evaluation_average.decay else 2
    needs = {
        "groups": Need(out, groups * (config.sampling.candidates * sizes.candidate_bytes + sizes.group_bytes)),
        "held-out groups": Need(out, heldout * (config.heldout.samples * sizes.candidate_bytes + sizes.group_bytes)),
        "encoded clips": Need(config.encoded or out, plan.conditions * sizes.encoded_bytes if config.uses_clips else 0),
        # One more than is kept: the new one is written before the oldest goes; and the best.
        "checkpoints": Need(out, (config.keep_checkpoints + 2) * copies * FLOAT32 * float(sizes.trained)),
        "policies": Need(out, policies * FLOAT32 * float(sizes.exported)),
    }
    if paid:
        total = sum(p.groups * request_bytes(p) for p in paid)
        needs["requests"] = Need(requests_folder(paid[0].judge, out), total)
    return needs


def request_bytes(paid: PaidGroups) -> float:
    """Bytes that one request leaves in the request store."""
    pictures = paid.request.pixels * JPEG_BYTES + paid.request.images * IMAGE_RECORD_BYTES
    return pictures + REQUEST_RECORD_BYTES


def require_room(needs: Mapping[str, Need]) -> None:
    """Refuse what does not fit; places on one file system are added up.

    Raises:
        OutsideError: less space is free than is needed.
    """
    by_device: dict[int, list[Need]] = defaultdict(list)
    for need in needs.values():
        by_device[os.stat(nearest_existing(need.place)).st_dev].append(need)
    for together in by_device.values():
        require_space(together[0].place, int(sum(need.bytes for need in together)))
