"""The held-out evaluations of a run: when one is due, who judges it, and what it adds to the run's position."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.judges.base import Judge
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.train_nft import heldout, monitors
from stateplay_rl.stages.train_nft.average import EvaluationAverage
from stateplay_rl.stages.train_nft.heldout_referee import HeldoutViewers
from stateplay_rl.stages.train_nft.in_flight import Judges
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stages.train_nft.state import Position
from stateplay_rl.stages.train_nft.timing import PartTimer
from stateplay_rl.stages.train_nft.trackers import Tracker
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.worlds.base import World


@dataclass
class HeldoutCurve:
    """Evaluates the policy as the settings say.

    Args:
        judges: `training` judges within its budget, `referee` watches, and judges what the budget does not allow.
        viewers: who else looks at the videos.
        tracker: gets what `heldout.jsonl` gets, its main figures.
        position: of the run; rewards and requests of evaluations are booked there.
        average: the evaluation average, when it is on.
    """

    config: TrainNftConfig
    plan: SegmentPlan
    run: Path
    world: World
    conditions: ConditionStore
    judges: Judges
    viewers: HeldoutViewers
    processes: Processes
    position: Position
    tracker: Tracker
    average: EvaluationAverage | None = None

    def judge(self) -> Judge | None:
        """Who judges the next evaluation; None when nobody may."""
        return heldout.heldout_judge(self.judges, self.config, self.position.heldout_requests)

    def evaluate(self, timer: PartTimer, *, is_last: bool = False) -> list[monitors.Alarm]:
        """An evaluation when one is due after the batches done so far; returns its alarms, if any."""
        done, settings = self.position.batches_done, self.config.heldout
        due = is_last or (done - self.plan.first_batch) % settings.every_batches == 0
        judge = self.judge() if settings.conditions and due else None
        if judge is None:
            return []
        self.position.begin_judge(judge.protocol_sha256)
        with timer("evaluate"):
            result = self._result(judge)
        position = self.position
        if self.config.uses_api and judge is self.judges.training:
            position.heldout_requests += settings.conditions
        on_main(self.processes, lambda: self._write(result.line))
        if result.reward_mean is None:
            return [monitors.nothing_judged(done, settings.conditions)]
        position.rewards.append((done, result.reward_mean))
        position.referee.append(result.referee_mean)
        rewards = [reward for _, reward in position.rewards]
        return monitors.heldout_alarms(rewards, position.referee, done, self.config)

    def is_best_now(self) -> bool:
        """Whether the held-out reward at this very point is the best of the stage."""
        rewards = self.position.rewards
        if not rewards or rewards[-1][0] != self.position.batches_done:
            return False
        return rewards[-1][1] >= max(reward for _, reward in rewards)

    def _write(self, line: Mapping[str, Any]) -> None:
        LineLog(self.run / layout.HELDOUT).append(line)
        shown = ("reward_mean", "by_class", "referee_mean", "frozen_display_share")
        self.tracker.log({"heldout": {name: line[name] for name in shown}}, line["batch"])

    def _result(self, judge: Judge) -> heldout.Evaluation:
        policy = self.config.heldout.policy
        referee = None if judge is self.judges.referee else self.judges.referee
        occasion = heldout.Occasion(self.position.batches_done, self.position.candidates_seen, policy, self.plan.kind)
        averaged = self.average if policy == "average" else None
        with nullcontext() if averaged is None else averaged.as_live():
            return heldout.evaluate(
                self.world,
                self.conditions,
                Judges(judge, referee=referee),
                self.config,
                self.processes,
                self.run,
                occasion,
                self.viewers,
            )
