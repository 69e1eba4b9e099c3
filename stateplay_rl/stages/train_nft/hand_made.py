"""One batch that was made by hand with `sprl rollout` and `sprl score`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import InputError
from stateplay_rl.judges.base import Judge
from stateplay_rl.judges.replay import ReplayJudge
from stateplay_rl.stages.candidates import policy_sha256
from stateplay_rl.stages.group_source import open_groups
from stateplay_rl.stages.train_nft.batches import BatchWork, judge_together
from stateplay_rl.stages.train_nft.in_flight import Judges
from stateplay_rl.stages.train_nft.judging import ScoringQueue
from stateplay_rl.stages.train_nft.samples import JudgedGroup
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.worlds.base import World


class HandMadeBatch:
    """One batch of `sprl rollout` groups with `sprl score` scores.

    `check` comes before anything of the run is touched: a refused batch leaves the run as it was.

    Args:
        run: the run that the batch is for; need not exist.
        fresh: begin the run anew, whatever lies there.
        referee: watches the groups, where the world has one.
    """

    def __init__(
        self,
        config: TrainNftConfig,
        processes: Processes,
        groups: Path,
        scores: Path,
        run: Path,
        conditions: ConditionStore,
        *,
        fresh: bool,
        referee: Judge | None = None,
    ) -> None:
        self._config, self._processes, self._referee = config, processes, referee
        self._source = open_groups(groups)
        self.judge: Judge = ReplayJudge(scores)
        self.stored = [self._source.read(group_id) for group_id in self._source.roots]
        if not self.stored:
            raise InputError(f"no finished group in {groups}", "roll out first: sprl rollout")
        _check_pool(conditions, self.stored)
        _check_scores(scores, self.stored)
        self._done_before = 0 if fresh else _batches_done(run)
        self.is_trained = not fresh and self._was_trained_last(run)

    @property
    def _position(self) -> int:
        """Number of this batch."""
        return self._done_before - 1 if self.is_trained else self._done_before

    def _was_trained_last(self, run: Path) -> bool:
        """This very batch is the run's last: it is finished, or a kill came between its checkpoint and the seal.

        Raises:
            InputError: a condition was consumed by another batch.
        """
        if not (run / layout.LEDGER).is_file():
            return False
        with Ledger.open(run / layout.LEDGER, read_only=True) as ledger:
            entries = [ledger.entry(group.record.condition_id) for group in self.stored]
            last = {e.group_id for e in ledger.members(self._done_before - 1)} if self._done_before else set()
        if last == {group.record.group_id for group in self.stored}:
            return True
        for entry in entries:
            if entry.batch is not None and entry.batch < self._done_before:
                raise InputError(
                    f"{run}: condition {entry.condition_id} was consumed by batch {entry.batch}",
                    "a condition is trained on once: roll out others (sprl rollout --skip N)",
                )
        return False

    def check(self, world: World) -> None:
        """On-policy unless the config says otherwise; the same world, sampler and group size in any case.

        Args:
            world: with the old policy that the batch would be trained under.

        Raises:
            InputError: a group does not fit.
        """
        if self.is_trained:
            return
        expected = policy_sha256(world, "old")
        for group in self.stored:
            record = group.record
            wrong: dict[str, tuple[object, object]] = {
                "world": (record.world_sha256, world.sha256),
                "candidates": (record.candidates, self._config.sampling.candidates),
                "sampler": (record.sampler, self._config.sampling.sampler),
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
                    "roll out with the old policy (sprl rollout --policy RUN/policy/<old>.safetensors), or accept "
                    "it with --off-policy (it is recorded)",
                )

    def batches(self) -> int:
        """All earlier hand-made batches and this one."""
        return self._position + 1

    def reserve(self, ledger: Ledger, batch: int) -> tuple[str, ...]:
        """Exactly the groups' conditions; one that an earlier batch consumed is refused."""
        return ledger.reserve_chosen(batch, [group.record.condition_id for group in self.stored])

    def judged(self, work: BatchWork) -> list[JudgedGroup]:
        """The stored verdicts, with picture measures."""
        with ScoringQueue(Judges(self.judge, referee=self._referee), work.known, self._config.judging) as queue:
            for _, group in self._processes.mine(self.stored):
                queue.put(group)
            return judge_together(queue, self._processes, work)

    def read(self, group_id: str) -> StoredGroup:
        """A group of the hand-made directory."""
        return self._source.read(group_id)


def _check_pool(conditions: ConditionStore, stored: Sequence[StoredGroup]) -> None:
    for group in stored:
        if conditions.by_id(group.record.condition_id).pool != "pass":
            raise InputError(
                f"group {group.record.group_id} is of the held-out condition {group.record.condition_id}",
                "held-out conditions are never trained on: roll out the pool `pass`",
            )


def _check_scores(scores: Path, stored: Sequence[StoredGroup]) -> None:
    """A group without any verdict is not a failed judgement: the scores are of other groups."""
    listed = read_manifest(scores, schema="scores").extra.get("group_sha256", {})
    for group in stored:
        if listed.get(group.record.group_id) != group.sha256:
            raise InputError(
                f"{scores} holds no verdict on group {group.record.group_id} of {group.folder.parent}",
                f"score these very groups: sprl score {group.folder.parent}",
            )


def _batches_done(run: Path) -> int:
    checkpoints = CheckpointStore(run / layout.CHECKPOINTS_FOLDER)
    latest = checkpoints.latest()
    return 0 if latest is None else int(checkpoints.load(latest).payload.state["batches_done"])
