"""Held-out evaluation: the same conditions and the same noise for every policy, so that differences are paired."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import InputError
from stateplay_rl.judges.base import Judge
from stateplay_rl.nft.statistics import bootstrap_mean
from stateplay_rl.stages.candidates import RolloutPlan, policy_sha256, roll_out_group
from stateplay_rl.stages.train_nft.heldout_referee import HeldoutJudges
from stateplay_rl.stages.train_nft.judging import ScoringQueue
from stateplay_rl.stages.train_nft.samples import JudgedGroup
from stateplay_rl.stages.verdicts import resume_lines
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import write_text
from stateplay_rl.stores.conditions import ConditionRecord, ConditionStore
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.worlds.base import PolicyName, World


@dataclass(frozen=True)
class Evaluation:
    """One held-out evaluation; `line` is what `heldout.jsonl` gets."""

    reward_mean: float
    line: Mapping[str, Any]


def choose_heldout(conditions: ConditionStore, count: int) -> list[ConditionRecord]:
    """The first `count` held-out conditions in their stored (class-interleaved) order.

    Raises:
        InputError: the directory holds fewer.
    """
    records = conditions.select("heldout")
    if len(records) < count:
        raise InputError(
            f"{len(records)} held-out conditions, {count} are asked for",
            "lower heldout.conditions, or rebuild: sprl build-conditions --heldout N",
        )
    return list(records[:count])


def evaluate(
    world: World,
    conditions: ConditionStore,
    judge: Judge,
    config: TrainNftConfig,
    processes: Processes,
    run: Path,
    *,
    batches_done: int,
    candidates_seen: int,
    policy: PolicyName,
    others: HeldoutJudges | None = None,
) -> Evaluation:
    """Roll out and judge the held-out conditions under `policy`; groups stay in `run/heldout/`."""
    records = choose_heldout(conditions, config.heldout.conditions)
    relative = layout.heldout_folder(batches_done, policy)
    groups = GroupStore(run / relative)
    plan = RolloutPlan(
        seed=config.heldout.seed,
        batch=0,
        sampling=config.sampling.model_copy(update={"candidates": config.heldout.samples}),
        policy=policy,
        policy_sha256=policy_sha256(world, policy),
        world_sha256=world.sha256,
    )
    known = {line["group_id"]: line for line in resume_lines(run / relative / layout.VERDICTS, judge)}
    with ScoringQueue(judge, known) as queue:
        finished = []
        for _, record in processes.mine(records):
            finished.append(groups.read(roll_out_group(world, conditions, record, plan, groups)))
            queue.put(finished[-1])
        mine = queue.results()
    judged = sorted(processes.gather(list(mine)), key=lambda g: g.condition_id)
    if processes.is_main:
        text = "".join(json.dumps(g.line, ensure_ascii=False) + "\n" for g in judged)
        write_text(run / relative / layout.VERDICTS, text)
    seen = {"batch": batches_done, "candidates_seen": candidates_seen}
    evaluation = _evaluation(judged, conditions, config, plan, seen, relative)
    looked = (others or HeldoutJudges()).look(finished, judged, conditions, processes, config.heldout.seed)
    return Evaluation(evaluation.reward_mean, {**evaluation.line, **looked})


def _evaluation(
    judged: Sequence[JudgedGroup],
    conditions: ConditionStore,
    config: TrainNftConfig,
    plan: RolloutPlan,
    seen: Mapping[str, int],
    relative: str,
) -> Evaluation:
    complete = [g for g in judged if g.reason is None]
    if not complete:
        raise InputError("held-out evaluation: not one group was judged", f"first reason: {judged[0].reason}")
    scores = {g.condition_id: [float(s) for s in g.scores if s is not None] for g in complete}
    clusters: dict[int, list[float]] = defaultdict(list)
    by_class: dict[str, list[float]] = defaultdict(list)
    for group in complete:
        clusters[conditions.by_id(group.condition_id).cluster_id].extend(scores[group.condition_id])
        by_class[group.mechanics_class].extend(scores[group.condition_id])
    interval = bootstrap_mean([clusters[c] for c in sorted(clusters)], seed=config.heldout.seed)
    reward_mean = _mean([s for row in scores.values() for s in row])
    line = {
        "batch": seen["batch"],
        "policy": plan.policy,
        "policy_sha256": plan.policy_sha256,
        "candidates_seen": seen["candidates_seen"],
        "conditions": len(complete),
        "failed": len(judged) - len(complete),
        "samples": config.heldout.samples,
        "reward_mean": reward_mean,
        "ci95": [interval.low, interval.high],
        "by_class": {name: _mean(values) for name, values in sorted(by_class.items())},
        "frozen_display_share": _frozen_share(complete),
        "scores": scores,
        "groups": relative,
    }
    return Evaluation(reward_mean, line)


def _frozen_share(judged: Sequence[JudgedGroup]) -> float | None:
    """Share of candidates whose displays are frozen, where the judge says so (arena's referee); else None."""
    flags = [
        bool(candidate["frozen_display"])
        for group in judged
        for candidate in _candidates(group)
        if "frozen_display" in candidate
    ]
    return _mean([float(f) for f in flags]) if flags else None


def _candidates(group: JudgedGroup) -> Sequence[Mapping[str, object]]:
    details = group.line["details"].get("candidates", ())
    return details if isinstance(details, list | tuple) else ()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
