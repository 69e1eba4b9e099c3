"""Everything that a killed run needs to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stateplay_rl.errors import InputError
from stateplay_rl.stages.train_nft.average import EvaluationAverage
from stateplay_rl.stages.train_nft.update import Updater
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import Checkpoint, CheckpointPayload
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.worlds.base import World

LOGS = (layout.METRICS, layout.HELDOUT, layout.TIMINGS, layout.ALARMS)
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class Position:
    """Where a run stands after its last finished batch.

    Args:
        batches_done: finished batches; the ledger's later batches are in flight and are done again.
        candidates_seen: candidates sampled for training so far.
        rewards: (batches done, held-out reward) of every evaluation by this stage's judge, in order.
        first_line: metrics of the first batch, for drifts; None before it.
        referee: the referee's held-out means, beside `rewards`; None where there is none.
        heldout_judge: protocol of the judge behind `rewards`: those of two judges are never compared.
        best_reward: best batch mean of this stage, points.
        heldout_requests: held-out groups that an API judge was asked about.
    """

    batches_done: int = 0
    candidates_seen: int = 0
    rewards: list[tuple[int, float]] = field(default_factory=list)
    first_line: dict[str, Any] | None = None
    referee: list[float | None] = field(default_factory=list)
    heldout_judge: str = ""
    best_reward: float | None = None
    heldout_requests: int = 0

    def begin_judge(self, protocol_sha256: str) -> None:
        """Held-out rewards by another judge start anew; scales differ."""
        if self.heldout_judge != protocol_sha256:
            self.heldout_judge = protocol_sha256
            self.rewards, self.referee, self.best_reward = [], [], None


def pack(
    world: World,
    updater: Updater,
    position: Position,
    run: Path,
    ledger: Mapping[str, Any] | None,
    average: EvaluationAverage | None,
) -> CheckpointPayload:
    """The checkpoint after a finished batch; log sizes are recorded, so that later lines can be cut off.

    Args:
        ledger: its position and what is in flight, from rank 0; None on the other ranks, which do not write.
    """
    return CheckpointPayload(
        live=world.policies.state("live"),
        old=world.policies.state("old"),
        optimizer=_moments(updater),
        average={} if average is None else average.state(),
        state={
            **vars(position),
            "rewards": [list(r) for r in position.rewards],
            "optimizer_steps": updater.optimizer_steps,
            "bad_in_a_row": updater.bad_in_a_row,
            "scheduler": updater.scheduler(),
            "ledger": ledger,
            "log_bytes": {name: LineLog(run / name).size for name in LOGS},
            "world_sha256": world.sha256,
        },
    )


def ledger_position(ledger: Ledger, batches_done: int) -> dict[str, Any]:
    """Where the ledger stands, and which batch is in flight: its conditions, how far each is, and its groups.

    Between batches nothing is in flight. After a stop in the middle the ledger itself says more: see `resume`.
    """
    members = ledger.members(batches_done)
    return {
        "counts": dict(ledger.counts()),
        "batches_reserved": ledger.batches(),
        "sha256": ledger.digest(),
        "in_flight": {
            "batch": batches_done if members else None,
            "conditions": [{"condition_id": m.condition_id, "state": m.state, "group_id": m.group_id} for m in members],
        },
    }


def unpack(checkpoint: Checkpoint, world: World, updater: Updater, average: EvaluationAverage | None) -> Position:
    """Restore policies, moments and counters.

    Raises:
        InputError: the checkpoint is of another world.
    """
    payload, state = checkpoint.payload, checkpoint.payload.state
    if state["world_sha256"] != world.sha256:
        raise InputError(
            f"{checkpoint.folder} is of world {state['world_sha256'][:12]}, now it is {world.sha256[:12]}",
            "resume with the weight files that the run was begun with",
        )
    world.policies.load("live", dict(payload.live))
    world.policies.load("old", dict(payload.old))
    _restore_moments(updater, payload.optimizer)
    updater.optimizer_steps = int(state["optimizer_steps"])
    updater.bad_in_a_row = int(state["bad_in_a_row"])
    if average is not None:
        # Switched on later: the average then begins at this checkpoint's live policy.
        average.load(payload.average or payload.live)
    return Position(
        batches_done=int(state["batches_done"]),
        candidates_seen=int(state["candidates_seen"]),
        rewards=[(int(batch), float(reward)) for batch, reward in state["rewards"]],
        first_line=state["first_line"],
        referee=list(state.get("referee", [None] * len(state["rewards"]))),
        heldout_judge=str(state.get("heldout_judge", "")),
        best_reward=state.get("best_reward"),
        heldout_requests=int(state.get("heldout_requests", 0)),
    )


def cut_logs(checkpoint: Checkpoint, run: Path) -> None:
    """Remove the lines of work that will be done again (rank 0 only)."""
    for name, size in checkpoint.payload.state["log_bytes"].items():
        LineLog(run / name).truncate_to(int(size))


def _names(updater: Updater) -> dict[str, torch.nn.Parameter]:
    return {
        name: parameter
        for group in updater.groups
        for name, parameter in zip(group.names, group.parameters, strict=True)
    }


def _moments(updater: Updater) -> dict[str, Tensor]:
    state = updater.optimizer.state
    return {
        f"{name}/{moment}": state[parameter][moment].detach().clone()
        for name, parameter in _names(updater).items()
        if parameter in state
        for moment in MOMENTS
    }


def _restore_moments(updater: Updater, saved: Mapping[str, Tensor]) -> None:
    for name, parameter in _names(updater).items():
        if f"{name}/step" not in saved:
            continue
        # AdamW keeps its step counter on the CPU.
        updater.optimizer.state[parameter] = {
            moment: saved[f"{name}/{moment}"].to("cpu" if moment == "step" else parameter.device).clone()
            for moment in MOMENTS
        }
