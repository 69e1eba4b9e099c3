"""Where a batch's judged groups come from: rolled out on policy, or made by hand with `rollout` and `score`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import SprlError
from stateplay_rl.judges.base import Judge
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.candidates import RolloutPlan, policy_sha256
from stateplay_rl.stages.main_process import raise_together
from stateplay_rl.stages.train_nft.in_flight import InFlight, Judges, Lines
from stateplay_rl.stages.train_nft.judging import ScoringQueue, workers_per_rank
from stateplay_rl.stages.train_nft.samples import JudgedGroup
from stateplay_rl.stages.train_nft.sampling_share import roll_out_share
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.worlds.base import World

POLL_SECONDS = 10.0
"""Ranks tell each other this often how far their judges are: no rank waits in one collective for a whole outage."""


@dataclass(frozen=True)
class BatchWork:
    """One batch to be sampled and judged.

    Args:
        batch: its number.
        members: its conditions, in order.
        known: verdicts that are on disk.
        audited: conditions that the auditing judge looks at too.
        progress: called on rank 0 with (condition, group, judged) of what is on disk, again and again.
    """

    batch: int
    members: Sequence[str]
    known: Lines
    audited: frozenset[str] = frozenset()
    progress: Callable[[str, str, bool], None] = lambda condition_id, group_id, judged: None


class BatchSource(Protocol):
    """Makes the groups of a batch and has them judged."""

    judge: Judge
    """Whose verdicts stand in the segment."""

    def batches(self) -> int:
        """Number of batches that the run will have in all when this segment ends."""

    def reserve(self, ledger: Ledger, batch: int) -> tuple[str, ...]:
        """The batch's conditions, reserved in the ledger (rank 0 only)."""

    def judged(self, work: BatchWork) -> list[JudgedGroup]:
        """The batch's judged groups in the order of its members, the same list on every rank."""


class OnPolicyBatches:
    """Rolls the ledger's next conditions out under the old policy; judging overlaps sampling.

    Args:
        plan: the segment that is trained.
        judges: who looks at a group.
        in_flight: where verdicts are kept until the batch is booked.
        warm: prepares the update of a condition (its real clip) while the judge is still at work.
    """

    def __init__(
        self,
        plan: SegmentPlan,
        world: World,
        conditions: ConditionStore,
        judges: Judges,
        config: TrainNftConfig,
        processes: Processes,
        groups: GroupStore,
        in_flight: InFlight,
        warm: Callable[[str], None] = lambda condition_id: None,
    ) -> None:
        self._plan, self._world, self._conditions = plan, world, conditions
        self._judges, self.judge = judges, judges.training
        self._config, self._processes, self._groups = config, processes, groups
        self._in_flight, self._warm = in_flight, warm

    def batches(self) -> int:
        """The last batch may be smaller."""
        return self._plan.end_batch

    def reserve(self, ledger: Ledger, batch: int) -> tuple[str, ...]:
        """The next unseen conditions."""
        return ledger.reserve(batch, self._plan.conditions_of(batch))

    def judged(self, work: BatchWork) -> list[JudgedGroup]:
        """Sample, store and judge; groups and verdicts that a killed process finished are kept."""
        plan = self._rollout_plan(work.batch)
        with ScoringQueue(
            self._judges,
            work.known,
            self._config.judging,
            workers=workers_per_rank(self._config, self._processes.count),
            in_flight=self._in_flight,
        ) as queue:
            failure = self._sample(queue, work, plan)
            return judge_together(queue, self._processes, work, failure, lambda: self._report(work, plan))

    def _rollout_plan(self, batch: int) -> RolloutPlan:
        return RolloutPlan(
            seed=self._config.seed,
            batch=batch,
            sampling=self._config.sampling,
            policy="old",
            policy_sha256=policy_sha256(self._world, "old"),
            world_sha256=self._world.sha256,
        )

    def _sample(self, queue: ScoringQueue, work: BatchWork, plan: RolloutPlan) -> SprlError | None:
        """This rank's share; an error is returned, so that all ranks can stop together."""
        mine = self._processes.mine(work.members)
        try:
            with Progress(f"batch {work.batch}: rollout", len(mine), "conditions") as progress:
                share = roll_out_share(self._world, self._conditions, work.members, plan, self._groups, self._processes)
                for condition_id, group_id in share:
                    queue.put(self._groups.read(group_id), audited=condition_id in work.audited)
                    self._report(work, plan)
                    progress.advance()
            # The judge is still at work: what the update will read is made ready meanwhile.
            for _, condition_id in mine:
                self._warm(condition_id)
        except SprlError as error:
            return error
        return None

    def _report(self, work: BatchWork, plan: RolloutPlan) -> None:
        """Tell rank 0 what lies on disk, whichever rank made it."""
        if not self._processes.is_main:
            return
        for condition_id in work.members:
            group_id = plan.group_id(condition_id)
            if self._groups.exists(group_id):
                judged = group_id in work.known.get("training", {}) or self._in_flight.has("training", group_id)
                work.progress(condition_id, group_id, judged)


def judge_together(
    queue: ScoringQueue,
    processes: Processes,
    work: BatchWork,
    failure: SprlError | None = None,
    report: Callable[[], None] = lambda: None,
) -> list[JudgedGroup]:
    """Wait until every rank's groups are judged; any rank's error stops all.

    Args:
        queue: this rank's.
        processes: the ranks.
        work: the batch.
        failure: what went wrong on this rank before.
        report: called on every round, and before an error stops all.

    Raises:
        SprlError: the first rank's error, on every rank.
    """
    told: str | None = None
    while True:
        left = 0
        if failure is None:
            try:
                left = queue.wait(POLL_SECONDS)
                report()
            except SprlError as error:
                failure = error
        if failure is not None:
            # Verdicts that came just before it are told, too; the failure itself is what matters.
            with suppress(SprlError):
                report()
        raise_together(processes, failure)
        states = processes.gather([(left, queue.trouble)])
        trouble = next((text for _, text in states if text is not None), None)
        if trouble != told:
            Progress(f"batch {work.batch}").say(trouble or "the judge answers again")
            told = trouble
        if not any(count for count, _ in states):
            break
    return in_order(processes.gather(list(queue.results())), work.members)


def in_order(groups: Sequence[JudgedGroup], members: Sequence[str]) -> list[JudgedGroup]:
    """Groups by the order of their conditions, whichever rank made them."""
    by_condition = {group.condition_id: group for group in groups}
    return [by_condition[condition_id] for condition_id in members]
