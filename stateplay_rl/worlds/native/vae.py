"""The video VAE: diffusers' `AutoencoderKLWan` (Wan2.2 style) with normalised latents.

Shapes: B batch, C latent channels, f latent slots, H W latent height and width, T frames,
h w picture height and width.

Differences from the library's own `encode` and `decode`, all tested against it:

* feature caches belong to the call, not to the instance, so several threads may share one VAE;
* any number of slots goes through the decoder at once (the causal convolutions give the same numbers);
  one slot at a time is the library's way and needs the least memory;
* frame counts and sizes that the library would silently cut or fail on are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, patchify, unpatchify
from torch import Tensor, nn

from stateplay_rl.errors import InputError, UsageError
from stateplay_rl.worlds.native import vae_fused
from stateplay_rl.worlds.native.original_names import VAE_MARK, vae_from_original
from stateplay_rl.worlds.native.vae_presets import TEMPORAL_FACTOR, VAE_PRESETS, VaeArchitecture
from stateplay_rl.worlds.native.weights import load_exactly
from stateplay_rl.worlds.transfer import to_host

STATISTICS = ("latents_mean", "latents_std")

FUSED_SLOTS = 4
"""Latent slots after the first that the fused way takes at once: large enough to fill a GPU, small enough to fit."""

__all__ = ["STATISTICS", "TEMPORAL_FACTOR", "VAE_PRESETS", "VaeArchitecture", "VideoVae"]


class VideoVae(nn.Module):
    """Frames <-> normalised latents.

    The state dict has diffusers' key names plus `latents_mean` and `latents_std` ([C], float32), so that one
    file holds all that decoding needs.
    """

    latents_mean: Tensor
    latents_std: Tensor

    def __init__(self, architecture: VaeArchitecture) -> None:
        super().__init__()
        if sum(architecture.temporal_downsample) != 2:
            raise UsageError(
                f"VAE: temporal_downsample {architecture.temporal_downsample} does not halve time twice",
                "exactly two levels must halve time (4 frames per latent slot)",
            )
        self.architecture = architecture
        folded = 3 * architecture.patch_size**2
        self.model: Any = AutoencoderKLWan(
            base_dim=architecture.base_dim,
            decoder_base_dim=architecture.decoder_base_dim,
            z_dim=architecture.z_dim,
            dim_mult=list(architecture.dim_mult),
            num_res_blocks=architecture.num_res_blocks,
            temperal_downsample=list(architecture.temporal_downsample),
            is_residual=True,
            in_channels=folded,
            out_channels=folded,
            patch_size=architecture.patch_size,
            scale_factor_temporal=TEMPORAL_FACTOR,
            scale_factor_spatial=architecture.spatial_factor,
        )
        mean = architecture.latents_mean or (0.0,) * architecture.z_dim
        std = architecture.latents_std or (1.0,) * architecture.z_dim
        self.register_buffer("latents_mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("latents_std", torch.tensor(std, dtype=torch.float32))
        self._fused = False
        self._encoder_caches = _causal_convolutions(self.model.encoder)
        self._decoder_caches = _causal_convolutions(self.model.decoder)

    def use_published_statistics(self, device: torch.device) -> None:
        """Take the statistics of the architecture: `Wan2.2_VAE.pth` does not hold them."""
        for name, values in zip(STATISTICS, (self.architecture.latents_mean, self.architecture.latents_std)):
            setattr(self, name, torch.tensor(values, dtype=torch.float32, device=device))

    @property
    def compute_dtype(self) -> torch.dtype:
        """dtype of the weights, hence of the computation."""
        dtype: torch.dtype = self.model.decoder.conv_in.weight.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.latents_mean.device

    def set_latent_statistics(self, mean_C: Tensor, std_C: Tensor) -> None:
        """Store the statistics of a freshly trained VAE's raw latents (saved with the weights)."""
        if not bool((std_C > 0).all()):
            raise InputError("VAE: latents_std holds a value that is not positive", "train the VAE longer")
        self.latents_mean.copy_(mean_C)
        self.latents_std.copy_(std_C)

    def prepare_for_inference(self, dtype: torch.dtype, device: torch.device) -> None:
        """Eval mode, no gradients, compute dtype (statistics stay float32), memory format."""
        self.eval().requires_grad_(False)
        self.to(device=device)
        for part in self.model.children():
            part.to(dtype=dtype)
        if self.architecture.channels_last:
            self._weights_channels_last()

    def use_fused(self, fused: bool) -> None:
        """Choose between the library's order of work and `vae_fused`, for calls without gradients."""
        self._fused = fused
        if fused:
            self._weights_channels_last()

    def _weights_channels_last(self) -> None:
        for module in self.model.modules():
            if isinstance(module, nn.Conv3d):
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last_3d)

    # -- frames -> latents ---------------------------------------------------------------------------

    def pixels(self, frames_BThwC: Tensor) -> Tensor:
        """uint8 [B, T, h, w, 3] -> [B, 3, T, h, w] in the compute dtype, scaled to [-1, 1].

        The cast comes first and the scaling second, as in the training repository: in bf16 the order shows.
        """
        cast = frames_BThwC.to(device=self.device).permute(0, 4, 1, 2, 3).to(self.compute_dtype)
        return cast * (2.0 / 255.0) - 1.0

    def moments(self, pixels_B3Thw: Tensor) -> Tensor:
        """[B, 3, T, h, w] in [-1, 1] -> raw mean and log-variance [B, 2C, f, H, W]; differentiable."""
        folded = patchify(pixels_B3Thw, patch_size=self.architecture.patch_size)
        if self._fused and not torch.is_grad_enabled():
            history: vae_fused.History = {}
            pieces = [folded[:, :, :1], *folded[:, :, 1:].split(TEMPORAL_FACTOR * FUSED_SLOTS, dim=2)]
            parts = [vae_fused.encode(self.model.encoder, piece, history) for piece in pieces if piece.shape[2]]
            return self.model.quant_conv(torch.cat(parts, dim=2))  # type: ignore[no-any-return]
        caches: list[Any] = [None] * self._encoder_caches
        parts = [self.model.encoder(folded[:, :, :1], feat_cache=caches, feat_idx=[0])]
        step = TEMPORAL_FACTOR * self.architecture.slots_per_call
        for start in range(1, folded.shape[2], step):
            chunk = folded[:, :, start : start + step]
            parts.append(self.model.encoder(chunk, feat_cache=caches, feat_idx=[0]))
        moments: Tensor = self.model.quant_conv(torch.cat(parts, dim=2))
        return moments

    @torch.no_grad()
    def encode(self, frames: np.ndarray) -> Tensor:
        """Normalised latents of whole videos.

        Args:
            frames: uint8 [T, h, w, 3] or [B, T, h, w, 3] with T = 1 (mod 4).

        Returns:
            float32 [C, f, H, W] or [B, C, f, H, W]: (posterior mean - latents_mean) / latents_std.

        Raises:
            InputError: another dtype, frame count or size (the library would drop frames or fail oddly).
        """
        batched = frames if frames.ndim == 5 else frames[None]
        self._check_frames(batched)
        frames_BThwC = torch.from_numpy(np.ascontiguousarray(batched))
        moments = self._in_calls(lambda call: self.moments(self.pixels(call)), frames_BThwC)
        latents = self.normalise(moments[:, : self.architecture.z_dim].float())
        return latents if frames.ndim == 5 else latents[0]

    def normalise(self, raw_BCfHW: Tensor) -> Tensor:
        """Raw latents -> zero mean, unit deviation per channel."""
        return (raw_BCfHW - _per_channel(self.latents_mean)) / _per_channel(self.latents_std)

    def denormalise(self, latents_BCfHW: Tensor) -> Tensor:
        """Inverse of `normalise`."""
        return latents_BCfHW * _per_channel(self.latents_std) + _per_channel(self.latents_mean)

    # -- latents -> frames ---------------------------------------------------------------------------

    def decode_raw(self, raw_BCfHW: Tensor) -> Tensor:
        """Raw (not normalised) latents -> [B, 3, T, h, w], not clamped; differentiable."""
        hidden = self.model.post_quant_conv(raw_BCfHW.to(self.compute_dtype))
        if self._fused and not torch.is_grad_enabled():
            history: vae_fused.History = {}
            pieces = [hidden[:, :, :1], *hidden[:, :, 1:].split(FUSED_SLOTS, dim=2)]
            chunks = [
                vae_fused.decode(self.model.decoder, piece, history, first=number == 0)
                for number, piece in enumerate(pieces)
                if piece.shape[2]
            ]
            return unpatchify(torch.cat(chunks, dim=2), patch_size=self.architecture.patch_size)  # type: ignore[no-any-return]
        caches: list[Any] = [None] * self._decoder_caches
        parts = [self.model.decoder(hidden[:, :, :1], feat_cache=caches, feat_idx=[0], first_chunk=True)]
        step = self.architecture.slots_per_call
        for start in range(1, hidden.shape[2], step):
            parts.append(self.model.decoder(hidden[:, :, start : start + step], feat_cache=caches, feat_idx=[0]))
        pixels: Tensor = unpatchify(torch.cat(parts, dim=2), patch_size=self.architecture.patch_size)
        return pixels

    @torch.no_grad()
    def decode_pixels(self, latents_BCfHW: Tensor) -> Tensor:
        """Normalised latents -> [B, 3, T, h, w] in the compute dtype, about [-1, 1], not clamped."""
        latents = latents_BCfHW.to(device=self.device, dtype=torch.float32)
        return self._in_calls(self.decode_raw, self.denormalise(latents))

    def decode(self, latents_BCfHW: Tensor) -> np.ndarray:
        """Normalised latents [B, C, f, H, W] -> uint8 [B, T, h, w, 3], T = 4 (f - 1) + 1.

        Values are clamped to [-1, 1] and rounded to the nearest level (the public code cuts down instead).
        """
        pixels_B3Thw = self.decode_pixels(latents_BCfHW).float().clamp(-1.0, 1.0)
        levels = ((pixels_B3Thw + 1.0) * 127.5).round().to(torch.uint8)
        return to_host(levels.permute(0, 2, 3, 4, 1).contiguous()).numpy()

    # -- helpers -------------------------------------------------------------------------------------

    def _in_calls(self, function: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
        """Apply `function` to calls of exactly `samples_per_call` samples and join the results."""
        size = self.architecture.samples_per_call
        results = []
        for start in range(0, batch.shape[0], size):
            call = batch[start : start + size]
            filling = [call[-1:]] * (size - call.shape[0])
            results.append(function(torch.cat([call, *filling]))[: call.shape[0]])
        return torch.cat(results)

    def _check_frames(self, frames_BThwC: np.ndarray) -> None:
        if frames_BThwC.dtype != np.uint8 or frames_BThwC.ndim != 5 or frames_BThwC.shape[-1] != 3:
            raise InputError(
                f"VAE: frames are {frames_BThwC.dtype} {list(frames_BThwC.shape)}",
                "give uint8 RGB frames [T, h, w, 3]",
            )
        _, frames, height, width, _ = frames_BThwC.shape
        if frames % TEMPORAL_FACTOR != 1:
            raise InputError(
                f"VAE: {frames} frames; the count must be 1 (mod {TEMPORAL_FACTOR})",
                f"cut the video to {max(frames - (frames - 1) % TEMPORAL_FACTOR, 1)} frames",
            )
        factor = self.architecture.spatial_factor
        if height % factor or width % factor:
            raise InputError(
                f"VAE: frames of {width}x{height}; both sizes must be multiples of {factor}",
                "scale and crop the frames to the world's size first",
            )

    def load_weights(self, weights: Mapping[str, Tensor], source: str) -> None:
        """Load tensors under diffusers' names (plus the two statistics) or those of `Wan2.2_VAE.pth`.

        Raises:
            InputError: naming missing, unexpected or wrongly shaped keys of `source`.
        """
        if VAE_MARK in weights:
            weights = vae_from_original(weights)
        own = {_module_key(key): value for key, value in weights.items()}
        fixed = bool(self.architecture.latents_mean)
        load_exactly(self, own, source, optional=("latents_mean", "latents_std") if fixed else ())

    def export_weights(self) -> dict[str, Tensor]:
        """Tensors under the key names that `load_weights` reads."""
        return {key.removeprefix("model."): value.contiguous() for key, value in self.state_dict().items()}


def _module_key(key: str) -> str:
    return key if key in ("latents_mean", "latents_std") else f"model.{key}"


def _per_channel(values_C: Tensor) -> Tensor:
    return values_C.view(1, -1, 1, 1, 1)


def _causal_convolutions(module: nn.Module) -> int:
    return sum(isinstance(part, WanCausalConv3d) for part in module.modules())
