"""A full GPU becomes a message: which part, how much it took, and the settings that lower it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from stateplay_rl.errors import OutsideError

Part = Literal["rollout", "evaluate", "train"]
REMEDIES: dict[Part, str] = {
    "rollout": "lower sampling.candidates_per_call",
    "evaluate": "lower sampling.candidates_per_call",
    "train": "lower optimizer.samples_per_call (a new run: it decides the last bits), set gradient_checkpointing: full "
    "in the world file, or parallel.strategy: sharded",
}


@contextmanager
def name_memory(part: Part) -> Iterator[None]:
    """Turn a GPU's out-of-memory error into one with exit code 5; the batch in flight survives on disk.

    Raises:
        OutsideError: the GPU's memory is full.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
        raise OutsideError(
            f"GPU out of memory in part {part!r} (peak {peak:.1f} GiB): {str(error).splitlines()[0]}",
            f"{REMEDIES[part]}; then run again with --resume",
        ) from error
