"""Frames through the checkout's VAE: `encode(videos, device=, tiled=)` and `decode(latents, device=, tiled=)`.

Shapes: C latent channels, f latent slots, H W latent grid, T frames, h w picture size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stateplay_rl.worlds.stateplay.networks import accepted


@torch.no_grad()
def encode_frames(vae: Any, frames_ThwC: np.ndarray, dtype: torch.dtype, device: torch.device) -> Tensor:
    """uint8 [T, h, w, 3] -> normalised latents [C, f, H, W] float32.

    The cast to the compute dtype comes first and the scaling second, as in the training repository.
    """
    pixels_ThwC = torch.from_numpy(np.ascontiguousarray(frames_ThwC)).to(device)
    pixels_CThw = pixels_ThwC.permute(3, 0, 1, 2).to(dtype) * (2.0 / 255.0) - 1.0
    arguments = accepted(vae.encode, {"device": device, "tiled": False}, positional=1)
    latents: Tensor = vae.encode([pixels_CThw], **arguments)[0]
    return latents.float()


@torch.no_grad()
def decode_frames(vae: Any, latents_1CfHW: Tensor, dtype: torch.dtype, device: torch.device) -> np.ndarray:
    """Normalised latents [1, C, f, H, W] -> uint8 [1, T, h, w, 3], clamped and rounded to the nearest level."""
    arguments = accepted(vae.decode, {"device": device, "tiled": False}, positional=1)
    pixels_13Thw: Tensor = vae.decode(latents_1CfHW.to(device, dtype), **arguments)
    levels = ((pixels_13Thw.float().clamp(-1.0, 1.0) + 1.0) * 127.5).round().to(torch.uint8)
    return levels.permute(0, 2, 3, 4, 1).contiguous().cpu().numpy()
