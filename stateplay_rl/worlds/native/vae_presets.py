"""Sizes of the video VAE, and presets. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stateplay_rl.worlds.native.vae_stats import WAN22_LATENT_MEAN, WAN22_LATENT_STD

TEMPORAL_FACTOR = 4
"""Frames per latent slot after the first: fixed by the library's chunking and by Wan's VAEs."""


@dataclass(frozen=True)
class VaeArchitecture:
    """Sizes of a Wan2.2-style VAE.

    Args:
        base_dim: channels of the encoder's first level.
        decoder_base_dim: channels of the decoder's last level.
        z_dim: latent channels.
        dim_mult: channel multipliers, one a level; all but the last level halve the picture.
        num_res_blocks: residual blocks a level.
        temporal_downsample: for each halving, whether time is halved too (two of them must be).
        patch_size: pixels folded into channels before the encoder.
        slots_per_call: latent slots after the first that go through encoder or decoder at once.
        samples_per_call: videos that go through at once; the last call is filled up by repeating its last
            video, so that a result never depends on the batch it came in. 2 on a CPU: with a single video
            torch leaves its fast 3-D convolution kernels (5 times slower a clip).
        channels_last: keep the 3-D convolution weights channels-last (about twice as fast on a CPU).
        latents_mean, latents_std: fixed statistics; empty when the weight file holds them.
    """

    base_dim: int
    decoder_base_dim: int
    z_dim: int
    dim_mult: tuple[int, ...]
    num_res_blocks: int
    temporal_downsample: tuple[bool, ...]
    patch_size: int
    slots_per_call: int = 1
    samples_per_call: int = 1
    channels_last: bool = False
    latents_mean: tuple[float, ...] = ()
    latents_std: tuple[float, ...] = ()

    @property
    def spatial_factor(self) -> int:
        """Picture pixels per latent pixel, in each direction."""
        return int(self.patch_size * 2 ** (len(self.dim_mult) - 1))


VAE_PRESETS: Mapping[str, VaeArchitecture] = {
    "stateplay-5b": VaeArchitecture(
        base_dim=160,
        decoder_base_dim=256,
        z_dim=48,
        dim_mult=(1, 2, 4, 4),
        num_res_blocks=2,
        temporal_downsample=(False, True, True),
        patch_size=2,
        latents_mean=WAN22_LATENT_MEAN,
        latents_std=WAN22_LATENT_STD,
    ),
    "arena": VaeArchitecture(
        base_dim=16,
        decoder_base_dim=16,
        z_dim=16,
        dim_mult=(1, 2, 2),
        num_res_blocks=1,
        temporal_downsample=(True, True),
        patch_size=2,
        slots_per_call=4,
        samples_per_call=2,
        channels_last=True,
    ),
}
