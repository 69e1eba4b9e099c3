"""The processes of one run: a thin, checked view of accelerate's engine.

Everything that crosses ranks goes through here, so that the rest of the code reads the same on one process and on
many. accelerate starts the processes and picks the device and back end; nothing of that is re-implemented.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor

from stateplay_rl.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """Rank, number of ranks and this rank's device."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def mine(self, items: Sequence[T]) -> list[tuple[int, T]]:
        """(index, item) of the items that this rank works on: round robin."""
        return [(index, item) for index, item in enumerate(items) if index % self.count == self.rank]

    def barrier(self) -> None:
        """Wait for all ranks."""
        PartialState().wait_for_everyone()

    def broadcast(self, value: T | None) -> T:
        """Rank 0's object on every rank."""
        if self.count == 1:
            return cast(T, value)
        box = [value]
        broadcast_object_list(box, from_process=0)
        return cast(T, box[0])

    def gather(self, values: Sequence[T]) -> list[T]:
        """All ranks' objects, rank by rank, on every rank."""
        if self.count == 1:
            return list(values)
        return cast(list[T], gather_object(list(values)))

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over ranks in place (float64 in, float64 out)."""
        if self.count > 1:
            torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.SUM)
        return tensor


def _leave_group() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def start_processes() -> Processes:
    """This rank's view of the run.

    Raises:
        UsageError: a launcher asked for several processes and accelerate started one (`accelerate launch --cpu
            --num_processes 2` does that silently).
    """
    use_cpu = not torch.cuda.is_available()
    state: Any = PartialState(cpu=use_cpu)
    asked = int(os.environ.get("WORLD_SIZE", "1"))
    if state.num_processes != asked:
        raise UsageError(
            f"{asked} processes were asked for, accelerate runs {state.num_processes}",
            "on CPUs: ACCELERATE_USE_CPU=true python -m torch.distributed.run --standalone "
            f"--nproc_per_node {asked} -m stateplay_rl train-nft ...",
        )
    if state.num_processes > 1:
        # Threads of the process group that outlive the interpreter abort the process at its exit.
        atexit.register(_leave_group)
    return Processes(int(state.process_index), int(state.num_processes), torch.device(state.device))
