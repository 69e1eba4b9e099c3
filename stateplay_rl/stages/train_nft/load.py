"""What a planned segment means for the machine and for the judge's bill, all worked out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.judges.request_size import GroupShape
from stateplay_rl.stages.train_nft.disk import Need, needs_of, require_room
from stateplay_rl.stages.train_nft.estimates import Evaluations, audited_groups, evaluations_of
from stateplay_rl.stages.train_nft.inputs import HAND_MADE
from stateplay_rl.stages.train_nft.paid_requests import PaidGroups, paid_groups
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stages.train_nft.sizes import Sizes, largest_shape, measure_sizes
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionRecord, ConditionStore


@dataclass(frozen=True)
class Load:
    """Sizes and numbers of a segment.

    Args:
        shape: the largest group.
        audited: groups that the auditing judge sees too, about.
        paid: what the paid judges look at.
        disk: what is written, by what.
    """

    shape: GroupShape
    sizes: Sizes
    evaluations: Evaluations
    audited: int
    paid: list[PaidGroups]
    disk: dict[str, Need]


def work_out(
    config: TrainNftConfig, world: WorldConfig, records: Sequence[ConditionRecord], plan: SegmentPlan, out: Path
) -> Load:
    """The load of a planned segment on these conditions (those of the pass).

    Raises:
        InputError, CorruptionError: an example image of a paid judge is missing or unreadable.
    """
    shape = largest_shape(records, world, config.sampling.candidates)
    sizes = measure_sizes(config, world, shape)
    evaluations, audited = evaluations_of(config, world, plan), audited_groups(config, plan)
    heldout_groups = evaluations.paid * config.heldout.conditions
    paid = paid_groups(config, plan, shape, audited=audited, heldout_groups=heldout_groups)
    disk = needs_of(config, sizes, plan, evaluations, paid, out)
    return Load(shape, sizes, evaluations, audited, paid, disk)


def require_disk(
    config: TrainNftConfig, world: WorldConfig, conditions: ConditionStore, plan: SegmentPlan, out: Path
) -> None:
    """Refuse to begin a segment that will not fit; one that goes on has written a part of it already.

    Raises:
        OutsideError: less space is free where the run lies than its segment will take.
    """
    goes_on = (out / layout.CHECKPOINTS_FOLDER).is_dir() and not plan.begins
    if plan.sealed or plan.kind == HAND_MADE or goes_on:
        return
    require_room(work_out(config, world, conditions.select("pass"), plan, out).disk)
