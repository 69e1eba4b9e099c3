"""`sprl rollout`: a world and conditions in, finished groups out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.rollout import RolloutConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.distributed import Processes, start_processes
from stateplay_rl.errors import InputError
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.candidates import RolloutPlan, draw_group, policy_sha256
from stateplay_rl.stages.group_size import candidate_bytes
from stateplay_rl.stages.group_writer import GroupWriter
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import require_space
from stateplay_rl.stores.conditions import ConditionRecord, ConditionStore
from stateplay_rl.stores.groups import GroupRow, GroupStore, write_groups_parquet
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.worlds.base import World
from stateplay_rl.worlds.load import load_world, require_policy
from stateplay_rl.worlds.native.weights import read_safetensors
from stateplay_rl.worlds.world_files import all_files, resolve_world


@dataclass(frozen=True)
class RolloutInputs:
    """What `rollout` reads, and how it treats an existing output."""

    conditions: Path
    resume: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class RolloutSummary:
    """What came out; `already_done`: the output was finished before and nothing was sampled."""

    out: Path
    groups: int
    candidates: int
    policy_sha256: str
    without_reference: int
    already_done: bool = False


def run(config: RolloutConfig, inputs: RolloutInputs, out: Path) -> RolloutSummary:
    """Sample every chosen condition once and seal `groups/`.

    Several processes share the conditions round robin; the result does not depend on their number.

    Raises:
        InputError: no condition is left to draw, or conditions, world or policy do not fit each other.
        OutputError: the output is finished, foreign, locked, or overlaps with an input.
    """
    processes = start_processes()
    world_config = resolve_world(config.world)
    conditions = ConditionStore.open(inputs.conditions)
    records = _chosen(conditions, config)
    reads = {"conditions": inputs.conditions}
    if config.policy is not None:
        reads["policy"] = config.policy
        # Before the output is opened: what is refused leaves nothing behind.
        require_policy(world_config, config.policy)
    output = on_main(
        processes,
        lambda: OutputDirectory.open(
            out,
            schema="groups",
            version=layout.SCHEMAS["groups"],
            command="rollout",
            config=config,
            inputs=reads,
            resume=inputs.resume,
            overwrite=inputs.overwrite,
            protected=all_files(world_config.files),
        ),
    )
    if processes.broadcast(output.already_sealed if output else None):
        return _already_done(out)
    try:
        on_main(processes, lambda: _require_room(out, records, config, world_config))
        world = load_world(world_config)
        if config.policy is not None:
            world.apply_policy(read_safetensors([config.policy]), str(config.policy))
        world.set_mode(config.mode)
        plan = _plan(config, world)
        _sample(world, conditions, records, plan, out, output, processes)
        processes.barrier()
        summary = on_main(processes, lambda: _seal(out, output, records, plan, config, world.facts))
        return processes.broadcast(summary)
    finally:
        if output is not None:
            output.close()


def _chosen(conditions: ConditionStore, config: RolloutConfig) -> list[ConditionRecord]:
    records = list(conditions.select(config.pool))[config.skip :][: config.limit]
    if not records:
        raise InputError(
            f"no condition of pool {config.pool!r} is left after skipping {config.skip}",
            "look at summary.json of the conditions",
        )
    return records


def _require_room(out: Path, records: Sequence[ConditionRecord], config: RolloutConfig, world: WorldConfig) -> None:
    """Refuse to begin what will not fit; groups that a stopped rollout finished are there already.

    Raises:
        OutsideError: less space is free than the groups to come will take.
    """
    left = max(len(records) - len(GroupStore(out).finished()), 0)
    longest = max(record.frames for record in records)
    require_space(out, int(left * config.sampling.candidates * candidate_bytes(world, longest)))


def _plan(config: RolloutConfig, world: World) -> RolloutPlan:
    return RolloutPlan(
        seed=config.seed,
        batch=config.batch,
        sampling=config.sampling,
        policy="live",
        policy_sha256=policy_sha256(world, "live"),
        world_sha256=world.sha256,
    )


def _sample(
    world: World,
    conditions: ConditionStore,
    records: list[ConditionRecord],
    plan: RolloutPlan,
    out: Path,
    output: OutputDirectory | None,
    processes: Processes,
) -> None:
    groups = GroupStore(out, hasher=output.hasher if output else None)
    mine = processes.mine(records)
    with Progress("rollout", len(mine), "conditions") as progress, GroupWriter(conditions, groups) as writer:
        for _, record in mine:
            if not groups.exists(plan.group_id(record.condition_id)):
                writer.put(draw_group(world, conditions, record, plan))
            progress.advance()
        writer.finish()


def _seal(
    out: Path,
    output: OutputDirectory | None,
    records: list[ConditionRecord],
    plan: RolloutPlan,
    config: RolloutConfig,
    world_facts: Mapping[str, Any],
) -> RolloutSummary:
    assert output is not None, "only the main process seals"
    groups = GroupStore(out)
    stored = [groups.read(plan.group_id(record.condition_id)) for record in records]
    path = out / layout.GROUPS
    output.hasher.record(path, write_groups_parquet(path, [GroupRow.of(group) for group in stored]))
    output.seal(
        extra={
            "world": config.world,
            "policy_sha256": plan.policy_sha256,
            "world_sha256": plan.world_sha256,
            "world_facts": dict(world_facts),
            "sampler": plan.sampling.sampler,
        },
        seeds={"run": config.seed, "batch": config.batch},
    )
    return RolloutSummary(
        out=out,
        groups=len(stored),
        candidates=sum(group.record.candidates for group in stored),
        policy_sha256=plan.policy_sha256,
        without_reference=sum(not group.record.has_reference for group in stored),
    )


def _already_done(out: Path) -> RolloutSummary:
    groups = GroupStore(out)
    stored = [groups.read(group_id).record for group_id in groups.finished()]
    return RolloutSummary(
        out,
        len(stored),
        sum(record.candidates for record in stored),
        stored[0].policy_sha256,
        sum(not record.has_reference for record in stored),
        already_done=True,
    )
