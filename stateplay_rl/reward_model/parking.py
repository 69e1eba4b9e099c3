"""A student that shares its card: its weights wait in host memory and come to the card for the groups to be scored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class ParkedModel:
    """Keeps a model's weights in host memory (pinned, when a GPU is meant) and lends them to the device.

    The host copies stay, so leaving the device costs nothing but freeing its memory.

    Args:
        model: frozen; its weights are moved to the host at once.
        device: where it computes.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        # Parameters and buffers: M-RoPE frequencies are buffers.
        self._tensors: list[Any] = [*model.parameters(), *model.buffers()]
        self._host = [self._to_host(tensor.data) for tensor in self._tensors]
        self._leave()

    def _to_host(self, data: torch.Tensor) -> torch.Tensor:
        host = torch.empty(data.shape, dtype=data.dtype, pin_memory=self._device.type == "cuda")
        return host.copy_(data)

    def _leave(self) -> None:
        for tensor, host in zip(self._tensors, self._host, strict=True):
            tensor.data = host
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """The weights are on the device inside the block; nobody may change them there."""
        for tensor, host in zip(self._tensors, self._host, strict=True):
            tensor.data = host.to(self._device, non_blocking=True)
        try:
            yield
        finally:
            self._leave()
