"""Bytes of a group on disk before it is sampled: estimates, from the world's preset alone."""

from __future__ import annotations

from stateplay_rl.config.world import WorldConfig
from stateplay_rl.worlds.native.vae_presets import VAE_PRESETS

BFLOAT16 = 2
CANDIDATE_VIDEO_BYTES: dict[str, float] = {"arena": 0.19, "stateplay-5b": 0.06}
"""Per pixel and frame of a candidate's MP4: arena's as measured in a demo's groups, the other within a factor 2."""


def latent_bytes(world: WorldConfig, frames: int) -> float:
    """Bytes of one candidate's latents."""
    vae = VAE_PRESETS[world.preset]
    slots = (frames - 1) // 4 + 1
    places = (world.frame_height // vae.spatial_factor) * (world.frame_width // vae.spatial_factor)
    return float(vae.z_dim * slots * places * BFLOAT16)


def candidate_bytes(world: WorldConfig, frames: int) -> float:
    """Bytes of one candidate: latents and video."""
    video = world.frame_height * world.frame_width * frames * CANDIDATE_VIDEO_BYTES[world.preset]
    return latent_bytes(world, frames) + video
