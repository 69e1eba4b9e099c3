"""Everything that a killed run needs to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stateplay_rl.errors import InputError
from stateplay_rl.stages.train_nft.update import Updater
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import Checkpoint, CheckpointPayload
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.worlds.base import World

LOGS = (layout.METRICS, layout.HELDOUT, layout.TIMINGS, layout.ALARMS)
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class Position:
    """Where a run stands after its last finished batch.

    Args:
        batches_done: finished batches; the ledger's later batches are in flight and are done again.
        candidates_seen: candidates sampled for training so far.
        rewards: (batches done, held-out reward) of every evaluation, in order.
        first_line: metrics of the first batch, for drifts; None before it.
    """

    batches_done: int = 0
    candidates_seen: int = 0
    rewards: list[tuple[int, float]] = field(default_factory=list)
    first_line: dict[str, Any] | None = None


def pack(world: World, updater: Updater, position: Position, run: Path) -> CheckpointPayload:
    """The checkpoint after a finished batch; log sizes are recorded, so that later lines can be cut off."""
    return CheckpointPayload(
        live=world.policies.state("live"),
        old=world.policies.state("old"),
        optimizer=_moments(updater),
        state={
            "batches_done": position.batches_done,
            "candidates_seen": position.candidates_seen,
            "rewards": [list(r) for r in position.rewards],
            "first_line": position.first_line,
            "optimizer_steps": updater.optimizer_steps,
            "bad_in_a_row": updater.bad_in_a_row,
            "log_bytes": {name: LineLog(run / name).size for name in LOGS},
            "world_sha256": world.sha256,
        },
    )


def unpack(checkpoint: Checkpoint, world: World, updater: Updater) -> Position:
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
    return Position(
        int(state["batches_done"]),
        int(state["candidates_seen"]),
        [(int(batch), float(reward)) for batch, reward in state["rewards"]],
        state["first_line"],
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
