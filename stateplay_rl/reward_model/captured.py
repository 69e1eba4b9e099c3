"""Work of fixed shapes as one CUDA graph: a pass over one token is 2,300 launches, which cost more than its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Captured:
    """One piece of work, captured when it is made and replayed by every call.

    Args:
        work: reads `inputs` and whatever it closes over, always at the same addresses; returns one tensor. It runs
            once before the capture, which loads its kernels: state that it changes is the caller's to restore.
        inputs: on a CUDA device; they are filled by every call.
    """

    def __init__(self, work: Callable[..., Tensor], *inputs: Tensor) -> None:
        self._inputs = inputs
        self._graph = torch.cuda.CUDAGraph()
        with _no_cached_casts():
            work(*inputs)
            # Other threads (drawing noise, writing videos) go on allocating meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._out = work(*inputs)

    def __call__(self, *values: Tensor) -> Tensor:
        """The result for `values`; the next call overwrites it.

        Args:
            values: of the inputs' shapes, on any device.
        """
        for place, value in zip(self._inputs, values, strict=True):
            place.copy_(value, non_blocking=True)
        self._graph.replay()
        return self._out


class WeightsWatch:
    """Notices that weights were written or moved: what was captured with them is stale.

    Args:
        modules: whose parameters and buffers the captured work reads.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self._modules = modules
        self._seen: tuple[tuple[int, int], ...] = ()

    def changed(self) -> bool:
        """Whether anything changed since the last call; true the first time."""
        before, self._seen = self._seen, tuple(state for module in self._modules for state in weights_state(module))
        return self._seen != before


def weights_state(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """Where a model's weights lie and how often each was written: what a captured graph of it stays valid for."""
    return tuple((tensor.data_ptr(), tensor._version) for tensor in (*model.parameters(), *model.buffers()))


def _no_cached_casts() -> Any:
    """Autocast as it is, but without copies that outlive an operation: a graph would read them after they are gone."""
    return torch.autocast(
        "cuda",
        dtype=torch.get_autocast_dtype("cuda"),
        enabled=torch.is_autocast_enabled("cuda"),
        cache_enabled=False,
    )
