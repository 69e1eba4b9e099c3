"""Faster ways to a native world's numbers, as a world file's `speed` block asks for them.

None of them changes what is computed, only the order of sums: results agree within rounding. On a CPU `auto`
means the plain way, so that results there stay what they were, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend

from stateplay_rl.config.world import Attention, SpeedOptions, Switch
from stateplay_rl.triton_launch import triton_usable

BACKENDS: Mapping[Attention, SDPBackend] = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
HALF = (torch.bfloat16, torch.float16)
HOPPER = (9, 0)
"""From this compute capability on, cuDNN's attention beats torch's default flash kernel (measured: 1.7 times)."""

GRAPHS = 64
"""Compiled variants of one function: video lengths times ways that gradients flow, and shapes inside the VAE."""

ROOMY_BYTES = 64 << 30
"""A card with less cannot hold text encoder and uncheckpointed activations of the real world together."""


@dataclass(frozen=True)
class Speed:
    """Resolved settings.

    Args:
        attention: kernel of self-attention and text attention; None leaves the choice to torch.
        compiled: the repeated block is compiled, once per shape.
        fused_vae: the VAE runs channels-last with fused norms (`vae_fused`).
        parked_text: the text encoder's weights rest on the host between prompts.
        kernels: a block's passes over memory (`block_passes`) and its text attention (`text_attention`) by Triton.
    """

    attention: SDPBackend | None = None
    compiled: bool = False
    fused_vae: bool = False
    parked_text: bool = False
    kernels: bool = False


PLAIN = Speed()


def resolve_speed(options: SpeedOptions, device: torch.device, compute_dtype: torch.dtype) -> Speed:
    """What `auto` means on this device in this dtype; what is named explicitly is taken as it is."""
    return Speed(
        attention=_attention(options.attention, device, compute_dtype),
        compiled=_on(options.compile, device),
        fused_vae=_on(options.vae, device),
        parked_text=_small(device) if options.park_text == "auto" else options.park_text == "on",
        kernels=_kernels_pay(device, compute_dtype) if options.kernels == "auto" else options.kernels == "on",
    )


def allow_graphs() -> None:
    """Raise torch's limit on compiled variants of one function, above which it would quietly run uncompiled."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS)


def _on(switch: Switch, device: torch.device) -> bool:
    return device.type == "cuda" if switch == "auto" else switch == "on"


def _kernels_pay(device: torch.device, compute_dtype: torch.dtype) -> bool:
    return compute_dtype in HALF and triton_usable(device)


def _small(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_properties(device).total_memory < ROOMY_BYTES


def _attention(name: Attention, device: torch.device, compute_dtype: torch.dtype) -> SDPBackend | None:
    if name != "auto":
        return BACKENDS.get(name)
    fast = compute_dtype in HALF and device.type == "cuda" and torch.cuda.get_device_capability(device) >= HOPPER
    return SDPBackend.CUDNN_ATTENTION if fast else None
