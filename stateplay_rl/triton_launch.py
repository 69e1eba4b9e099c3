"""Whether Triton's kernels run on a device, and the sizes that they are launched with."""

from __future__ import annotations

import importlib.util

import torch

LEAST_WIDTH = 16
"""Sides of a product are no shorter in Triton."""


def triton_usable(device: torch.device) -> bool:
    """Whether Triton kernels can run on this device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def power_of_two(width: int, least: int = 1) -> int:
    """The least power of two that holds `width` elements, and no less than `least`."""
    return max(least, 1 << (width - 1).bit_length())
