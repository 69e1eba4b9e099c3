"""Bytes of a group on disk before it is sampled: estimates, from the world's preset alone."""

from __future__ import annotations

from stateplay_rl.config.world import WorldConfig
from stateplay_rl.worlds.native.vae_presets import VAE_PRESETS

BFLOAT16 = 2
VIDEO_BYTES_PER_PIXEL_FRAME = 0.06
"""Measured on arena's and on Wan's videos at our encoder settings; within a factor of two."""


def latent_bytes(world: WorldConfig, frames: int) -> float:
    """Bytes of one candidate's latents."""
    vae = VAE_PRESETS[world.preset]
    slots = (frames - 1) // 4 + 1
    places = (world.frame_height // vae.spatial_factor) * (world.frame_width // vae.spatial_factor)
    return float(vae.z_dim * slots * places * BFLOAT16)


def candidate_bytes(world: WorldConfig, frames: int) -> float:
    """Bytes of one candidate: latents and video."""
    video = world.frame_height * world.frame_width * frames * VIDEO_BYTES_PER_PIXEL_FRAME
    return latent_bytes(world, frames) + video
