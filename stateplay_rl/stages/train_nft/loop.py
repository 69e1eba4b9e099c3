"""The training loop: reserve, roll out, judge, update, follow with old, log, checkpoint. One batch at a time.

What a batch does depends on (config, policies at its start, its conditions) only. So a killed batch is done again from
the last checkpoint, its finished groups and verdicts are kept, and the result is the same to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import OutsideError, SprlError
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.train_nft import audits, monitors, state
from stateplay_rl.stages.train_nft.average import EvaluationAverage
from stateplay_rl.stages.train_nft.batches import BatchSource, BatchWork
from stateplay_rl.stages.train_nft.booking import Booking
from stateplay_rl.stages.train_nft.data import BatchData
from stateplay_rl.stages.train_nft.details import measure_details
from stateplay_rl.stages.train_nft.eta import TimeLeft
from stateplay_rl.stages.train_nft.heldout_curve import HeldoutCurve
from stateplay_rl.stages.train_nft.in_flight import Judges, read_known
from stateplay_rl.stages.train_nft.metrics import Counters, batch_metrics
from stateplay_rl.stages.train_nft.permissions import Gate
from stateplay_rl.stages.train_nft.samples import BatchSamples, JudgedGroup, build_samples, plan_steps
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stages.train_nft.signal import signal_cosine
from stateplay_rl.stages.train_nft.spending import Spending
from stateplay_rl.stages.train_nft.timing import PartTimer, gpu_memory_mb
from stateplay_rl.stages.train_nft.trackers import Tracker
from stateplay_rl.stages.train_nft.update import Updater, UpdateStats
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.worlds.base import World


@dataclass
class Trainer:
    """Everything that a batch needs; built once a run. `booking` and `spending` are rank 0's, and None elsewhere.

    Args:
        plan: the segment that is trained.
        judges: who looks at a batch's groups; `judges.training` is whose scores train.
        curve: the held-out evaluations.
        gate: of stage C's student: its thresholds hold in audits too; None elsewhere, and in a smoke run.
        average: the evaluation average, when it is on.
    """

    config: TrainNftConfig
    run: Path
    segment: Path
    plan: SegmentPlan
    world: World
    judges: Judges
    source: BatchSource
    curve: HeldoutCurve
    data: BatchData
    updater: Updater
    checkpoints: CheckpointStore
    processes: Processes
    booking: Booking | None
    position: state.Position
    tracker: Tracker
    spending: Spending | None = None
    average: EvaluationAverage | None = None
    gate: Gate | None = None
    _first_seconds: float | None = field(default=None, init=False)
    _alarms: int = field(default=0, init=False)

    def train(self) -> None:
        """All batches that are left, with held-out evaluations in between.

        Raises:
            OutsideError: an alarm pauses the run (with everything saved), or three bad steps in a row.
        """
        total, done = self.source.batches(), self.position.batches_done
        self.position.begin_judge((self.curve.judge() or self.judges.training).protocol_sha256)
        if done == self.plan.first_batch and done < total and not self.position.rewards:
            self.curve.evaluate(PartTimer())
            self._checkpoint()
        left = TimeLeft(total - done)
        with Progress("train-nft", total, "batches") as progress:
            progress.advance(self.position.batches_done)
            while self.position.batches_done < total:
                line = self._batch(self.position.batches_done)
                progress.advance(note=self._note(line), left=left.after_one())

    def _note(self, line: Mapping[str, Any]) -> str:
        reward = "no group judged" if line["reward_mean"] is None else f"reward {line['reward_mean']:.1f}"
        heldout_reward = f", held-out {self.position.rewards[-1][1]:.1f}" if self.position.rewards else ""
        paid = self.spending.words() if self.spending is not None else ""
        return ", ".join(part for part in (f"{reward}{heldout_reward}", f"{self._alarms} alarms", paid) if part)

    def _batch(self, batch: int) -> dict[str, Any]:
        timer = PartTimer()
        members = self.processes.broadcast(on_main(self.processes, lambda: self._booking.reserve(self.source, batch)))
        window = audits.audit_window(self.plan, self.config.audits, batch, members)
        with timer("rollout_and_score"):
            judged = self._judged(batch, members, window)
        on_main(self.processes, lambda: self._booking.book_verdicts(batch, judged))
        samples = build_samples(judged, self.config, batch)
        cosine = self._signal(samples, batch, timer)
        with timer("train"):
            stats = self._update(samples, batch)
        self.position.batches_done = batch + 1
        self.position.candidates_seen += sum(len(group.scores) for group in judged)
        line = self._measure(judged, samples, stats, batch)
        line["signal_cosine"] = cosine
        audit_alarm = self._audit(line, window)
        on_main(self.processes, lambda: self._write_line(line))
        self._follow_with_old(line["eta"])
        alarms = audit_alarm + monitors.alarms_of(
            line, self.position.first_line, self.config, self.position.best_reward
        )
        self._remember(line)
        is_last = batch + 1 == self.source.batches()
        alarms += self.curve.evaluate(timer, is_last=is_last)
        self.data.clear()
        alarms += self._timing_alarms(timer, batch)
        on_main(self.processes, lambda: self._book_outcome(batch, judged, samples, alarms, timer))
        self._alarms += len(alarms)
        reasons = self._reasons_to_pause(alarms, audit_alarm)
        if is_last or reasons or self.curve.is_best_now() or (batch + 1) % self.config.checkpoint_every_batches == 0:
            self._checkpoint()
        if reasons:
            raise OutsideError(f"paused after batch {batch}: {reasons}", "look at it, then --resume")
        return line

    # -- the parts of a batch --------------------------------------------------------------------------

    @property
    def _booking(self) -> Booking:
        assert self.booking is not None, "rank 0 holds the ledger"
        return self.booking

    def _judged(self, batch: int, members: tuple[str, ...], window: audits.AuditWindow) -> list[JudgedGroup]:
        """The batch's verdicts; when they cannot be had now, the checkpoint says which batch is in flight."""

        def progress(condition_id: str, group_id: str, judged: bool) -> None:
            self._booking.follow(batch, condition_id, group_id, judged=judged)

        known = read_known(in_flight=self.data.in_flight, judges=self.judges, processes=self.processes)
        work = BatchWork(batch, members, known, window.members, progress)
        try:
            return self.source.judged(work)
        except OutsideError:
            # Nothing was trained yet: the state is the last checkpoint's, and only the ledger has moved.
            with suppress(SprlError):
                self._checkpoint()
            raise

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
        if self.average is not None:
            self.average.update()

    def _measure(
        self, judged: list[JudgedGroup], samples: BatchSamples, stats: UpdateStats, batch: int
    ) -> dict[str, Any]:
        counters = Counters(batch, self.plan.kind, self.updater.optimizer_steps, self.position.candidates_seen)
        line = batch_metrics(judged, samples, stats, self.world, self.config, counters)
        if samples.samples and batch % self.config.monitors.detail_every_batches == 0:
            updater = self.updater
            line.update(measure_details(updater.objective, updater.groups, samples, batch, self.processes))
        return line

    def _audit(self, line: dict[str, Any], window: audits.AuditWindow) -> list[monitors.Alarm]:
        """Agreement of the judges at the end of an audit; returns its alarm, if any."""
        if not window.ends:
            return []
        batches = range(window.first_batch, line["batch"] + 1)
        gate = self.gate
        threshold = audits.DEFAULT_MIN_AGREEMENT if gate is None else gate.min_pairwise_agreement
        tie_points = 0 if gate is None else gate.tie_points

        def measure() -> audits.Agreement:
            return audits.measure_agreement(self.segment, self._booking.audited_groups(batches), tie_points)

        agreement = self.processes.broadcast(on_main(self.processes, measure))
        line["audit"] = agreement.line()
        alarm = audits.agreement_alarm(agreement, threshold, line["batch"])
        return [] if alarm is None else [alarm]

    def _remember(self, line: dict[str, Any]) -> None:
        """What later batches are compared with."""
        self.position.first_line = self.position.first_line or line
        if line["reward_mean"] is not None:
            self.position.best_reward = max(line["reward_mean"], self.position.best_reward or line["reward_mean"])

    def _write_line(self, line: Mapping[str, Any]) -> None:
        LineLog(self.run / layout.METRICS).append(line)
        self.tracker.log(line, line["batch"])

    def _timing_alarms(self, timer: PartTimer, batch: int) -> list[monitors.Alarm]:
        line = {"batch": batch, **timer.line()}
        found = monitors.timing_alarms(line, self._first_seconds, gpu_memory_mb(), self.config.monitors)
        if self._first_seconds is None:
            self._first_seconds = sum(line["seconds"].values())
        return found

    def _book_outcome(
        self,
        batch: int,
        judged: list[JudgedGroup],
        samples: BatchSamples,
        alarms: list[monitors.Alarm],
        timer: PartTimer,
    ) -> None:
        self._booking.book_outcome(batch, judged, samples)
        for alarm in alarms:
            LineLog(self.run / layout.ALARMS).append(alarm)
        opens = batch == self.plan.first_batch
        requests = None
        if self.spending is not None:
            requests = self.spending.of_batch(batch, [group.group_id for group in judged], opens_segment=opens)
        LineLog(self.run / layout.TIMINGS).append({"batch": batch, **timer.line(), "requests": requests})

    def _checkpoint(self) -> None:
        """Every rank packs (state is replicated), rank 0 writes."""
        done, ledger = self.position.batches_done, None
        if self.booking is not None:
            ledger = state.ledger_position(self.booking.ledger, done)
        payload = state.pack(self.world, self.updater, self.position, self.run, ledger, self.average)
        is_best = self.curve.is_best_now()
        on_main(self.processes, lambda: self.checkpoints.save(done, payload, is_best=is_best))

    def _reasons_to_pause(self, alarms: list[monitors.Alarm], audit: list[monitors.Alarm]) -> str:
        """The batch's alarms in words when the run shall stop for them, else empty. A failed audit always stops it."""
        chosen = audit
        if self.config.monitors.pause_on_alarm:
            chosen = [alarm for alarm in alarms if alarm["severity"] == "alarm"]
        return "; ".join(f"{alarm['name']}: {alarm['message']}" for alarm in chosen)
