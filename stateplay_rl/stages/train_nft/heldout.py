"""Held-out evaluation: the same conditions and the same noise for every policy, so that differences are paired."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import InputError, SprlError
from stateplay_rl.judges.base import Judge
from stateplay_rl.nft.statistics import bootstrap_mean
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.candidates import RolloutPlan, policy_sha256
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.train_nft.batches import BatchWork, judge_together
from stateplay_rl.stages.train_nft.heldout_referee import HeldoutViewers
from stateplay_rl.stages.train_nft.in_flight import InFlight, Judges, read_known
from stateplay_rl.stages.train_nft.judging import ScoringQueue, workers_per_rank
from stateplay_rl.stages.train_nft.samples import JudgedGroup
from stateplay_rl.stages.train_nft.sampling_share import roll_out_share
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import write_text
from stateplay_rl.stores.conditions import ConditionRecord, ConditionStore
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.worlds.base import PolicyName, World


@dataclass(frozen=True)
class Evaluation:
    """One held-out evaluation; `line` is what `heldout.jsonl` gets. Without one judged group there is no reward."""

    reward_mean: float | None
    line: Mapping[str, Any]
    referee_mean: float | None = None


@dataclass(frozen=True)
class Occasion:
    """When and of what an evaluation is.

    Args:
        batches_done, candidates_seen: how far training is.
        policy: a policy of the world, or `average` (which stands in live's place).
        stage: of the segment; two stages' judges never share a folder.
    """

    batches_done: int
    candidates_seen: int
    policy: PolicyName | Literal["average"]
    stage: str


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


def heldout_judge(judges: Judges, config: TrainNftConfig, requests_used: int) -> Judge | None:
    """Who judges the next evaluation: never an API beyond its own budget; then the referee, if there is one."""
    if not config.uses_api or requests_used + config.heldout.conditions <= config.heldout_requests:
        return judges.training
    return judges.referee


def evaluate(
    world: World,
    conditions: ConditionStore,
    judges: Judges,
    config: TrainNftConfig,
    processes: Processes,
    run: Path,
    occasion: Occasion,
    viewers: HeldoutViewers | None = None,
) -> Evaluation:
    """Roll out and judge the held-out conditions under a policy; groups stay in `run/heldout/`.

    Args:
        judges: `training` scores; `referee`, if any, is measured beside it.
        viewers: who else looks at the videos: the referee that reads the display, the checkout's evaluators.
    """
    records = choose_heldout(conditions, config.heldout.conditions)
    relative = layout.heldout_folder(occasion.batches_done, occasion.policy, occasion.stage)
    folder = run / relative
    groups = GroupStore(folder)
    # The average stands in live's place.
    sampled: PolicyName = "live" if occasion.policy == "average" else occasion.policy
    plan = RolloutPlan(
        seed=config.heldout.seed,
        batch=0,
        sampling=config.sampling.model_copy(update={"candidates": config.heldout.samples}),
        policy=sampled,
        policy_sha256=policy_sha256(world, sampled),
        world_sha256=world.sha256,
    )
    in_flight = InFlight(folder)
    known = read_known(in_flight, judges, processes)
    work = BatchWork(occasion.batches_done, [record.condition_id for record in records], known)
    workers = workers_per_rank(config, processes.count)
    failure: SprlError | None = None
    mine = []
    with ScoringQueue(judges, known, config.judging, workers=workers, in_flight=in_flight) as queue:
        try:
            share = roll_out_share(world, conditions, work.members, plan, groups, processes, "evaluate")
            with Progress("held-out videos", len(processes.mine(work.members)), "conditions") as progress:
                for _, group_id in share:
                    mine.append(groups.read(group_id))
                    queue.put(mine[-1])
                    progress.advance()
        except SprlError as error:
            failure = error
        judged = sorted(judge_together(queue, processes, work, failure), key=lambda g: g.condition_id)
    on_main(processes, lambda: _write_verdicts(folder, judged, in_flight))
    evaluation = _evaluation(judged, conditions, config, plan, occasion, judges.training, relative)
    looked = (viewers or HeldoutViewers()).look(mine, judged, conditions, processes, config.heldout.seed)
    watched = evaluation.referee_mean
    if watched is None and looked["referee"] is not None:
        # The lower bound: a policy that makes the display unreadable must not pass for a good one.
        watched = looked["referee"]["low"]
    return Evaluation(evaluation.reward_mean, {**evaluation.line, **looked, "referee_mean": watched}, watched)


def _write_verdicts(folder: Path, judged: Sequence[JudgedGroup], in_flight: InFlight) -> None:
    for name, lines in (
        (layout.VERDICTS, [group.line for group in judged]),
        (layout.REFEREE, [group.referee for group in judged if group.referee is not None]),
    ):
        if lines:
            write_text(folder / name, "".join(json.dumps(dict(line), ensure_ascii=False) + "\n" for line in lines))
    in_flight.clear()


def _evaluation(
    judged: Sequence[JudgedGroup],
    conditions: ConditionStore,
    config: TrainNftConfig,
    plan: RolloutPlan,
    occasion: Occasion,
    judge: Judge,
    relative: str,
) -> Evaluation:
    complete = [g for g in judged if g.reason is None]
    scores = {g.condition_id: [float(s) for s in g.scores if s is not None] for g in complete}
    clusters: dict[int, list[float]] = defaultdict(list)
    by_class: dict[str, list[float]] = defaultdict(list)
    for group in complete:
        clusters[conditions.by_id(group.condition_id).cluster_id].extend(scores[group.condition_id])
        by_class[group.mechanics_class].extend(scores[group.condition_id])
    interval = bootstrap_mean([clusters[c] for c in sorted(clusters)], seed=config.heldout.seed) if complete else None
    reward_mean = _mean([s for row in scores.values() for s in row]) if complete else None
    line: dict[str, Any] = {
        "batch": occasion.batches_done,
        "stage": occasion.stage,
        "policy": occasion.policy,
        "policy_sha256": plan.policy_sha256,
        "judge_id": judge.judge_id,
        "candidates_seen": occasion.candidates_seen,
        "conditions": len(complete),
        "failed": len(judged) - len(complete),
        "samples": config.heldout.samples,
        "reward_mean": reward_mean,
        "ci95": [None, None] if interval is None else [interval.low, interval.high],
        "by_class": {name: _mean(values) for name, values in sorted(by_class.items())},
        "referee_mean": referee_mean(judged),
        "frozen_display_share": _frozen_share(complete),
        "scores": scores,
        "groups": relative,
    }
    return Evaluation(reward_mean, line, line["referee_mean"])


def referee_mean(judged: Sequence[JudgedGroup]) -> float | None:
    """Mean score by the referee that is never trained on; None where there is none, or it could not read."""
    lines = [group.referee for group in judged if group.referee is not None]
    scores = [float(s) for line in lines if line["status"] == "scored" for s in line["scores"]]
    return _mean(scores) if scores else None


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
