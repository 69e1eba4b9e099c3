"""The processes of one run: a thin, checked view of accelerate's engine.

Everything that crosses ranks goes through here, so that the rest of the code reads the same on one process and on
many. accelerate starts the processes and picks the device and back end; nothing of that is re-implemented.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor

from stateplay_rl.errors import OutsideError, UsageError

T = TypeVar("T")
Strategy = Literal["replicated", "sharded"]
DEFAULT_TIMEOUT_MINUTES = 30.0


@dataclass(frozen=True)
class Processes:
    """Rank, number of ranks and this rank's device.

    Args:
        lockstep: every forward is a collective (sharded weights): ranks without work take part all the same.
    """

    rank: int
    count: int
    device: torch.device
    lockstep: bool = False

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def mine(self, items: Sequence[T]) -> list[tuple[int, T]]:
        """(index, item) of the items that this rank works on: round robin."""
        return [(index, item) for index, item in enumerate(items) if index % self.count == self.rank]

    def turns(self, items: Sequence[T]) -> list[tuple[T, bool]]:
        """This rank's items in turn, and whether they count.

        In lockstep every rank has equally many: one that would have nothing to do goes through another's item, whose
        result is thrown away, so that it takes part in the collectives. Otherwise the same as `mine`.
        """
        own = [(item, True) for _, item in self.mine(items)]
        if self.lockstep and len(own) < -(-len(items) // self.count):
            own.append((items[-1], False))
        return own

    def barrier(self) -> None:
        """Wait for all ranks."""
        with self._collective():
            PartialState().wait_for_everyone()

    def broadcast(self, value: T | None) -> T:
        """Rank 0's object on every rank."""
        if self.count == 1:
            return cast(T, value)
        box = [value]
        with self._collective():
            broadcast_object_list(box, from_process=0)
        return cast(T, box[0])

    def gather(self, values: Sequence[T]) -> list[T]:
        """All ranks' objects, rank by rank, on every rank."""
        if self.count == 1:
            return list(values)
        with self._collective():
            return cast(list[T], gather_object(list(values)))

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over ranks in place (float64 in, float64 out)."""
        if self.count > 1:
            with self._collective():
                torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.SUM)
        return tensor

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """A rank that died or stalled is an error of the outside: the run can be resumed, with any number of ranks.

        Raises:
            OutsideError: another rank is gone, or did not answer in time.
        """
        try:
            yield
        except RuntimeError as error:
            if self.count == 1 or isinstance(error, torch.OutOfMemoryError):
                raise
            raise OutsideError(
                f"rank {self.rank}: another rank has stopped or does not answer ({str(error).splitlines()[0]})",
                "read the other ranks' messages (torchrun --log-dir keeps a file a rank), then --resume",
            ) from error


def _leave_group() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def choose_strategy(wanted: Strategy) -> Strategy:
    """How the model lies on the ranks: as the run's settings say, or as accelerate's config file asks.

    Args:
        wanted: `parallel.strategy`.

    Raises:
        UsageError: accelerate's config asks for an engine that would be ignored silently.
    """

    def asked(name: str) -> bool:
        return os.environ.get(name, "").lower() in ("1", "true", "yes")

    for name, engine in (("ACCELERATE_USE_DEEPSPEED", "DeepSpeed"), ("ACCELERATE_USE_MEGATRON_LM", "Megatron-LM")):
        if asked(name):
            raise UsageError(
                f"accelerate's config asks for {engine}, which train-nft does not use",
                "choose MULTI_GPU, or FSDP with fsdp_version: 2 (examples/accelerate/)",
            )
    if not asked("ACCELERATE_USE_FSDP"):
        return wanted
    version = os.environ.get("FSDP_VERSION", "1")
    if version != "2":
        raise UsageError(
            f"accelerate's config asks for FSDP version {version}",
            "set fsdp_version: 2 (examples/accelerate/fsdp2.yaml)",
        )
    return "sharded"


def start_processes(timeout_minutes: float = DEFAULT_TIMEOUT_MINUTES, strategy: Strategy = "replicated") -> Processes:
    """This rank's view of the run.

    Args:
        timeout_minutes: how long a rank may leave the others waiting before they stop.
        strategy: see `choose_strategy`.

    Raises:
        UsageError: a launcher asked for several processes and accelerate started one (`accelerate launch --cpu
            --num_processes 2` does that silently).
    """
    use_cpu = not torch.cuda.is_available()
    asked = int(os.environ.get("WORLD_SIZE", "1"))
    kwargs = {"timeout": timedelta(minutes=timeout_minutes)} if asked > 1 else {}
    state: Any = PartialState(cpu=use_cpu, **kwargs)
    if state.num_processes != asked:
        raise UsageError(
            f"{asked} processes were asked for, accelerate runs {state.num_processes}",
            "on CPUs: ACCELERATE_USE_CPU=true python -m torch.distributed.run --standalone "
            f"--nproc_per_node {asked} -m stateplay_rl train-nft ...",
        )
    if state.num_processes > 1:
        # Threads of the process group that outlive the interpreter abort the process at its exit.
        atexit.register(_leave_group)
    count = int(state.num_processes)
    lockstep = count > 1 and choose_strategy(strategy) == "sharded"
    return Processes(int(state.process_index), count, torch.device(state.device), lockstep)
