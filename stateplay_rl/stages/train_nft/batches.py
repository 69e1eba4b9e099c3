"""Where a batch's judged groups come from: rolled out on policy, or made by hand with `rollout` and `score`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import InputError
from stateplay_rl.judges.base import Judge
from stateplay_rl.judges.replay import ReplayJudge
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.candidates import RolloutPlan, policy_sha256, roll_out_group
from stateplay_rl.stages.group_source import open_groups
from stateplay_rl.stages.train_nft.judging import ScoringQueue
from stateplay_rl.stages.train_nft.samples import JudgedGroup
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.worlds.base import World


class BatchSource(Protocol):
    """Makes the groups of a batch and has them judged."""

    def batches(self) -> int:
        """Number of batches that this run will have in all."""

    def reserve(self, ledger: Ledger, batch: int) -> tuple[str, ...]:
        """The batch's conditions, reserved in the ledger (rank 0 only)."""

    def judged(self, batch: int, members: Sequence[str], known: Mapping[str, Any]) -> list[JudgedGroup]:
        """The batch's judged groups in the order of `members`, the same list on every rank."""


class OnPolicyBatches:
    """Rolls the ledger's next conditions out under the old policy; judging overlaps sampling."""

    def __init__(
        self,
        world: World,
        conditions: ConditionStore,
        judge: Judge,
        config: TrainNftConfig,
        processes: Processes,
        groups: GroupStore,
    ) -> None:
        self._world, self._conditions, self._judge = world, conditions, judge
        self._config, self._processes, self._groups = config, processes, groups

    def batches(self) -> int:
        """The last batch may be smaller."""
        return -(-self._config.stage_conditions // self._config.conditions_per_batch)

    def reserve(self, ledger: Ledger, batch: int) -> tuple[str, ...]:
        """The next unseen conditions."""
        left = self._config.stage_conditions - batch * self._config.conditions_per_batch
        return ledger.reserve(batch, min(left, self._config.conditions_per_batch))

    def judged(self, batch: int, members: Sequence[str], known: Mapping[str, Any]) -> list[JudgedGroup]:
        """Sample, store and judge; groups and verdicts that a killed process finished are kept."""
        plan = RolloutPlan(
            seed=self._config.seed,
            batch=batch,
            sampling=self._config.sampling,
            policy="old",
            policy_sha256=policy_sha256(self._world, "old"),
            world_sha256=self._world.sha256,
        )
        mine = self._processes.mine(members)
        with (
            ScoringQueue(self._judge, known) as queue,
            Progress(f"batch {batch}: rollout", len(mine), "conditions") as progress,
        ):
            for _, condition_id in mine:
                record = self._conditions.by_id(condition_id)
                group_id = roll_out_group(self._world, self._conditions, record, plan, self._groups)
                queue.put(self._groups.read(group_id))
                progress.advance()
            return in_order(self._processes.gather(list(queue.results())), members)


class HandMadeBatch:
    """One batch of `sprl rollout` groups with `sprl score` scores."""

    def __init__(
        self,
        world: World,
        config: TrainNftConfig,
        processes: Processes,
        groups: Path,
        scores: Path,
        position: int,
    ) -> None:
        self._world, self._config, self._processes = world, config, processes
        self._source = open_groups(groups)
        self._judge = ReplayJudge(scores)
        self._position = position
        self.stored = [self._source.read(group_id) for group_id in self._source.roots]
        self._check()

    def _check(self) -> None:
        """On-policy unless the config says otherwise; the same world, sampler and group size in any case."""
        expected = policy_sha256(self._world, "old")
        for group in self.stored:
            record = group.record
            wrong = {
                "world": (record.world_sha256, self._world.sha256),
                "candidates": (record.candidates, self._config.sampling.candidates),
                "sampling steps": (record.sampling_steps, self._config.sampling.steps),
            }
            for name, (found, wanted) in wrong.items():
                if found != wanted:
                    raise InputError(
                        f"group {record.group_id}: {name} is {found}, this run has {wanted}",
                        "roll out and train with the same settings",
                    )
            if record.policy_sha256 != expected and not self._config.off_policy:
                raise InputError(
                    f"group {record.group_id} was sampled by policy {record.policy_sha256[:12]}, the old policy "
                    f"is {expected[:12]}",
                    "roll out with the old policy, or accept it with --off-policy (it is recorded)",
                )

    def batches(self) -> int:
        """All earlier hand-made batches and this one."""
        return self._position + 1

    def reserve(self, ledger: Ledger, batch: int) -> tuple[str, ...]:
        """Exactly the groups' conditions; one that an earlier batch consumed is refused."""
        return ledger.reserve_chosen(batch, [group.record.condition_id for group in self.stored])

    def judged(self, batch: int, members: Sequence[str], known: Mapping[str, Any]) -> list[JudgedGroup]:
        """The stored verdicts, with picture measures."""
        del batch
        with ScoringQueue(self._judge, known) as queue:
            for _, group in self._processes.mine(self.stored):
                queue.put(group)
            return in_order(self._processes.gather(list(queue.results())), members)

    def read(self, group_id: str) -> StoredGroup:
        """A group of the hand-made directory."""
        return self._source.read(group_id)


def in_order(groups: Sequence[JudgedGroup], members: Sequence[str]) -> list[JudgedGroup]:
    """Groups by the order of their conditions, whichever rank made them."""
    by_condition = {group.condition_id: group for group in groups}
    return [by_condition[condition_id] for condition_id in members]
