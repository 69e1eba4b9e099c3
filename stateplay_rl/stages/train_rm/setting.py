"""What all parts of a training share: settings, processes, how the device computes, and how work is shared out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stateplay_rl.config.train_rm import TrainRmConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.reward_model.learning import Precision, attention_kernels, half_precision

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """Settings and processes of one run of train-rm.

    Args:
        out: the directory being written.
        precision: of the frozen base, decided.
    """

    config: TrainRmConfig
    processes: Processes
    out: Path
    precision: Precision

    @property
    def in_step(self) -> bool:
        """Whether every rank must run the same passes (the base is sharded)."""
        return self.config.compute.sharding == "fsdp2"

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Precision and kernels of a forward pass."""
        device = self.processes.device
        with half_precision(device, self.precision), attention_kernels(device, self.config.compute.attention):
            yield

    def shares(self, items: Sequence[T]) -> list[tuple[T, float]]:
        """This rank's items with their share of the mean, 1 / number of all items.

        With a sharded base every rank makes the same number of passes: one without work repeats an item with share 0.
        """
        mine = [(item, 1.0 / len(items)) for _, item in self.processes.mine(items)]
        if self.in_step:
            most = -(-len(items) // self.processes.count)
            mine += [(items[0], 0.0)] * (most - len(mine))
        return mine

    def scored_here(self, items: Sequence[T]) -> list[T]:
        """Items that this rank scores: its own, or all of them when ranks must stay in step."""
        return list(items) if self.in_step else [item for _, item in self.processes.mine(items)]
