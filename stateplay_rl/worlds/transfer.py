"""Tensors between host and device without making either wait for more than the copy itself."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on `device`, which the host does not wait for.

    From ordinary memory a copy begins when all work queued on the GPU is done, and the host waits until then; from
    pinned memory it is queued like a kernel.
    """
    return pinned(tensor, device).to(device, non_blocking=True)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """In memory that `device` copies from by itself; the same tensor where that makes no difference."""
    return tensor.pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the CPU; from a GPU through pinned memory, which is many times faster for whole videos."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host
