"""Whether Triton's kernels run on a device, and the sizes that they are launched with."""

from __future__ import annotations

import importlib.util

import torch


def kernels_pay(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels run here and are worth it: half precision on a GPU, with Triton."""
    half = dtype in (torch.bfloat16, torch.float16)
    return device.type == "cuda" and half and importlib.util.find_spec("triton") is not None


def power_of_two(width: int) -> int:
    """The least power of two that holds `width` elements, at least 16."""
    return max(16, 1 << (width - 1).bit_length())
