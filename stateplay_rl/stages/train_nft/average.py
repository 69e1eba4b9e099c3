"""The evaluation average: average <- decay average + (1 - decay) live after each batch.

A third set beside live and old, never the same tensors, never trained and never sampled from for training. It lies on
the CPU in float32; for an evaluation it stands in for live.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.base import World


class EvaluationAverage:
    """The averaged parameters; starts as a copy of live.

    Args:
        world: whose live policy is averaged.
        decay: weight on the average, in [0, 1).
    """

    def __init__(self, world: World, decay: float) -> None:
        self._world, self._decay = world, decay
        self._values = world.policies.state("live")

    @torch.no_grad()
    def update(self) -> None:
        """One step towards live, in float32."""
        live = self._world.policies.state("live")
        for name, value in self._values.items():
            value.mul_(self._decay).add_(live[name], alpha=1.0 - self._decay)

    def state(self) -> dict[str, Tensor]:
        """Copies of the averaged parameters."""
        return {name: value.clone() for name, value in self._values.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a checkpoint's average.

        Raises:
            InputError: other names or shapes.
        """
        wrong = sorted(
            name
            for name in state.keys() | self._values.keys()
            if name not in state or name not in self._values or state[name].shape != self._values[name].shape
        )
        if wrong:
            raise InputError(f"the evaluation average does not fit: {wrong[:5]}", "resume with the run's own mode")
        self._values = {name: state[name].clone() for name in self._values}

    @contextmanager
    def as_live(self) -> Iterator[None]:
        """The average in live's place inside the block; live is put back as it was."""
        policies = self._world.policies
        live = policies.state("live")
        policies.load("live", self.state())
        try:
            yield
        finally:
            policies.load("live", live)
