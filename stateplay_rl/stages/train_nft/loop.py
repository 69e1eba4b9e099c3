"""The training loop: reserve, roll out, judge, update, follow with old, log, checkpoint. One batch at a time.

What a batch does depends on (config, policies at its start, its conditions) only. So a killed batch is done again from
the last checkpoint, its finished groups and verdicts are kept, and the result is the same to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import OutsideError
from stateplay_rl.judges.base import Judge
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.train_nft import heldout, monitors, state
from stateplay_rl.stages.train_nft.batches import BatchSource
from stateplay_rl.stages.train_nft.data import BatchData
from stateplay_rl.stages.train_nft.heldout_referee import HeldoutJudges, referee_alarm
from stateplay_rl.stages.train_nft.samples import BatchSamples, JudgedGroup, build_samples, plan_steps
from stateplay_rl.stages.train_nft.signal import signal_cosine
from stateplay_rl.stages.train_nft.timing import PartTimer
from stateplay_rl.stages.train_nft.trackers import Tracker
from stateplay_rl.stages.train_nft.update import Updater, UpdateStats
from stateplay_rl.stages.verdicts import resume_lines
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.worlds.base import World

HASH_EVERY_BATCHES = 5
"""Ranks compare their live parameters this often; they must never drift apart."""


@dataclass
class Trainer:
    """Everything that a batch needs; built once a run. `ledger` is open on rank 0 only."""

    config: TrainNftConfig
    run: Path
    segment: Path
    world: World
    conditions: ConditionStore
    judge: Judge
    source: BatchSource
    data: BatchData
    updater: Updater
    checkpoints: CheckpointStore
    processes: Processes
    ledger: Ledger | None
    position: state.Position
    tracker: Tracker
    heldout_judges: HeldoutJudges

    def train(self) -> None:
        """All batches that are left, with held-out evaluations in between.

        Raises:
            OutsideError: an alarm pauses the run (with everything saved), or three bad steps in a row.
        """
        total = self.source.batches()
        if self.position.batches_done == 0 and not self.position.rewards:
            self._evaluate(PartTimer())
            self._checkpoint()
        with Progress("train-nft", total, "batches") as progress:
            progress.advance(self.position.batches_done)
            while self.position.batches_done < total:
                line = self._batch(self.position.batches_done)
                reward = line["reward_mean"]
                progress.advance(note="no group judged" if reward is None else f"reward {reward:.1f}")

    def _batch(self, batch: int) -> dict[str, Any]:
        timer = PartTimer()
        members = self.processes.broadcast(on_main(self.processes, lambda: self._reserve(batch)))
        with timer("rollout_and_score"):
            judged = self.source.judged(batch, members, self._known_verdicts())
        on_main(self.processes, lambda: self._book_verdicts(batch, judged))
        samples = build_samples(judged, self.config, batch)
        cosine = self._signal(samples, batch, timer)
        with timer("train"):
            stats = self._update(samples, batch)
        self.position.batches_done = batch + 1
        self.position.candidates_seen += sum(len(group.scores) for group in judged)
        line = self._log(judged, samples, stats, batch, cosine)
        self._follow_with_old(line["eta"])
        alarms = monitors.alarms_of(line, self.position.first_line, self.config)
        self.position.first_line = self.position.first_line or line
        is_last = batch + 1 == self.source.batches()
        alarms += self._evaluate(timer, is_last=is_last)
        self.data.clear()
        on_main(self.processes, lambda: self._book_outcome(batch, judged, samples, alarms, timer))
        reasons = self._reasons_to_pause(alarms)
        if is_last or reasons or (batch + 1) % self.config.checkpoint_every_batches == 0:
            self._checkpoint()
        self._check_ranks_agree(batch)
        if reasons:
            raise OutsideError(f"paused after batch {batch}: {reasons}", "look at it, then --resume")
        return line

    # -- the parts of a batch --------------------------------------------------------------------------

    def _reserve(self, batch: int) -> tuple[str, ...]:
        assert self.ledger is not None, "rank 0 holds the ledger"
        return self.source.reserve(self.ledger, batch)

    def _known_verdicts(self) -> dict[str, Mapping[str, Any]]:
        """Verdicts on disk; rank 0's list, so that no rank asks for one that another has."""
        lines = on_main(self.processes, lambda: resume_lines(self.segment / layout.VERDICTS, self.source.judge))
        return {line["group_id"]: line for line in self.processes.broadcast(lines)}

    def _book_verdicts(self, batch: int, judged: list[JudgedGroup]) -> None:
        assert self.ledger is not None, "rank 0 holds the ledger"
        log = LineLog(self.segment / layout.VERDICTS)
        known = {line["group_id"] for line in log.read()}
        for group in judged:
            self.ledger.mark(batch, group.condition_id, "rolled", group.group_id)
            if group.group_id not in known:
                log.append(dict(group.line))
            if group.reason is None:
                self.ledger.mark(batch, group.condition_id, "scored")

    def _signal(self, samples: BatchSamples, batch: int, timer: PartTimer) -> float | None:
        """The gradient cosine of the batch when it is due; before the update, at which it must look."""
        every = self.config.monitors.signal_every_batches
        if every == 0 or batch % every:
            return None
        with timer("signal"):
            updater = self.updater
            return signal_cosine(updater.objective, samples.samples, updater.parameters, self.processes, batch)

    def _update(self, samples: BatchSamples, batch: int) -> UpdateStats:
        steps = plan_steps(samples.samples, self.config, batch)
        return self.updater.run(steps, batch, len(steps) // self.config.optimizer.inner_epochs)

    def _follow_with_old(self, eta: float) -> None:
        """old <- eta old + (1 - eta) live, with the very eta that the batch's metrics show."""
        self.world.policies.update_old(eta)

    def _log(
        self,
        judged: list[JudgedGroup],
        samples: BatchSamples,
        stats: UpdateStats,
        batch: int,
        signal: float | None,
    ) -> dict[str, Any]:
        line = monitors.batch_metrics(
            judged,
            samples,
            stats,
            self.world,
            self.config,
            batch=batch,
            optimizer_steps=self.updater.optimizer_steps,
            candidates_seen=self.position.candidates_seen,
        )
        if samples.samples and batch % self.config.monitors.detail_every_batches == 0:
            line.update(monitors.velocity_details(self.updater.objective, samples, batch))
        line["signal_cosine"] = signal
        on_main(self.processes, lambda: self._write_line(line))
        return line

    def _write_line(self, line: Mapping[str, Any]) -> None:
        LineLog(self.run / layout.METRICS).append(line)
        self.tracker.log(line, line["batch"])

    def _evaluate(self, timer: PartTimer, *, is_last: bool = False) -> list[dict[str, Any]]:
        """A held-out evaluation when one is due; returns its alarm, if any."""
        done, settings = self.position.batches_done, self.config.heldout
        if settings.conditions == 0 or not (is_last or done % settings.every_batches == 0):
            return []
        with timer("evaluate"):
            result = heldout.evaluate(
                self.world,
                self.conditions,
                self.judge,
                self.config,
                self.processes,
                self.run,
                batches_done=done,
                candidates_seen=self.position.candidates_seen,
                policy=settings.policy,
                others=self.heldout_judges,
            )
        self.position.rewards.append((done, result.reward_mean))
        on_main(self.processes, lambda: LineLog(self.run / layout.HELDOUT).append(result.line))
        alarm = monitors.heldout_alarm([reward for _, reward in self.position.rewards], done, self.config)
        return [found for found in (alarm, self._referee_alarm()) if found is not None]

    def _referee_alarm(self) -> dict[str, Any] | None:
        """Judge up, referee down? Rank 0 holds the log of all evaluations."""
        alarm: dict[str, Any] | None = self.processes.broadcast(
            on_main(self.processes, lambda: referee_alarm(LineLog(self.run / layout.HELDOUT).read(), self.config))
        )
        return alarm

    def _book_outcome(
        self,
        batch: int,
        judged: list[JudgedGroup],
        samples: BatchSamples,
        alarms: list[dict[str, Any]],
        timer: PartTimer,
    ) -> None:
        assert self.ledger is not None, "rank 0 holds the ledger"
        reasons = samples.optimality.gate.reasons
        for group, reason in zip(judged, reasons, strict=True):
            if group.reason is not None:
                self.ledger.mark(batch, group.condition_id, "failed", reason=group.reason)
            elif reason is not None:
                self.ledger.mark(batch, group.condition_id, "gated", reason=reason)
            else:
                self.ledger.mark(batch, group.condition_id, "trained")
        for alarm in alarms:
            LineLog(self.run / layout.ALARMS).append(alarm)
        LineLog(self.run / layout.TIMINGS).append({"batch": batch, **timer.line()})

    def _checkpoint(self) -> None:
        """Every rank packs (state is replicated), rank 0 writes."""
        rewards = self.position.rewards
        is_best = bool(rewards) and rewards[-1][0] == self.position.batches_done
        is_best = is_best and rewards[-1][1] >= max(reward for _, reward in rewards)
        payload = state.pack(self.world, self.updater, self.position, self.run)
        on_main(
            self.processes,
            lambda: self.checkpoints.save(self.position.batches_done, payload, is_best=is_best),
        )

    def _check_ranks_agree(self, batch: int) -> None:
        if self.processes.count == 1 or batch % HASH_EVERY_BATCHES:
            return
        hashes = self.processes.gather([self.world.policies.sha256("live")])
        if len(set(hashes)) != 1:
            raise OutsideError(
                f"batch {batch}: the ranks' live parameters differ ({', '.join(h[:8] for h in hashes)})",
                "resume from the checkpoint before; if it happens again, check the GPUs",
            )

    def _reasons_to_pause(self, alarms: list[dict[str, Any]]) -> str:
        """The batch's alarms in words when the run shall stop for them, else empty."""
        if not self.config.monitors.pause_on_alarm:
            return ""
        return "; ".join(f"{a['name']}: {a['message']}" for a in alarms if a["severity"] == "alarm")
