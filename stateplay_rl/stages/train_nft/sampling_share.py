"""A rank's share of a rollout: its conditions one after the other, in step with the other ranks where it must be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stateplay_rl.distributed import Processes
from stateplay_rl.stages.candidates import RolloutPlan, draw_group, sample_group
from stateplay_rl.stages.group_writer import GroupWriter
from stateplay_rl.stages.train_nft.memory import Part, name_memory
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.worlds.base import World


def roll_out_share(
    world: World,
    conditions: ConditionStore,
    condition_ids: Sequence[str],
    plan: RolloutPlan,
    groups: GroupStore,
    processes: Processes,
    part: Part = "rollout",
) -> Iterator[tuple[str, str]]:
    """Sample and store this rank's groups; yields (condition, group) as each is finished, in order.

    A group is written while the next one is sampled, so it is yielded when that one has been drawn.

    With sharded weights every forward is a collective. A rank whose group is on disk already, or that has none in
    this turn, then samples along as long as any rank must sample, and stores nothing.
    """
    with GroupWriter(conditions, groups) as writer:
        for condition_id, counts in processes.turns(condition_ids):
            record = conditions.by_id(condition_id)
            group_id = plan.group_id(condition_id)
            missing = counts and not groups.exists(group_id)
            with name_memory(part):
                if processes.lockstep and not missing and any(processes.gather([missing])):
                    sample_group(world, conditions, record, plan)
                elif processes.lockstep and missing:
                    processes.gather([missing])
                drawn = draw_group(world, conditions, record, plan) if missing else None
            if drawn is not None:
                yield from writer.put(drawn)
            elif counts:
                yield from [*writer.finish(), (condition_id, group_id)]
        yield from writer.finish()
