"""How far the fast way's numbers are from float32, next to the plain way's.

Shapes: B = 1 batch, C latent channels, f latent slots, H W latent grid.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stateplay_rl.stages.profile.workload import Workload
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.vae import VideoVae
from stateplay_rl.worlds.native.world import TIMESTEPS, NativeWorld

VAE_SLOTS = 3
"""Slots of the decoded piece: the first, which is special, and two more."""
VAE_SIDE = 8
"""Its largest side in latents: float32 convolutions of a whole picture would not fit a small card."""


def transformer_drift(workload: Workload) -> dict[str, float]:
    """Relative error (Euclidean) of a velocity against the same weights in float32: fast, and plain."""
    world = workload.world
    fast = workload.forward()[:, :, 1:]
    speed = world.speed
    world.transformer.use_attention(None)
    world.transformer.use_kernels(False)
    with torch.compiler.set_stance("force_eager"):
        plain = workload.forward()[:, :, 1:]
    world.transformer.use_attention(speed.attention)
    world.transformer.use_kernels(speed.kernels)
    exact = _float32_velocity(world, workload)[:, :, 1:]
    return {"fast": _relative(fast, exact), "plain": _relative(plain, exact), "fast_to_plain": _relative(fast, plain)}


@torch.no_grad()
def _float32_velocity(world: NativeWorld, workload: Workload) -> Tensor:
    own = world.transformer
    with torch.device("meta"):
        model = LatentStateTransformer(own.sizes, own.latent_state, torch.float32)
    model.load_state_dict({name: value.float() for name, value in own.state_dict().items()}, assign=True)
    conditions = workload.conditions
    first = conditions.first_latent_BC1HW
    _, tokens = model.state_sequence(first, conditions.action_bins_BfK)
    pinned = torch.cat([first, workload.noise_BCfHW[:, :, 1:]], dim=2)
    velocity: Tensor = model(
        pinned, workload.sigma_B * TIMESTEPS, conditions.action_bins_BfK, conditions.text_BLD, tokens
    )
    return velocity


def vae_drift(workload: Workload) -> dict[str, float]:
    """The same for a decoded and an encoded piece; `library` is diffusers' own loop in the world's dtype."""
    world = workload.world
    vae = world.modules.vae
    latents = workload.clean_BCfHW[:, :, :VAE_SLOTS, :VAE_SIDE, :VAE_SIDE]
    side = VAE_SIDE * vae.architecture.spatial_factor
    video = torch.from_numpy(workload.video_ThwC[None, : 4 * (VAE_SLOTS - 1) + 1, :side, :side].copy())
    library, exact = plain_copy(vae, world.compute_dtype), plain_copy(vae, torch.float32)
    results = {}
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for name, part in (("decode", lambda v: v.decode_pixels(latents)), ("encode", lambda v: _mean(v, video))):
            right = part(exact)
            results[f"{name}, ours"] = _relative(part(vae), right)
            results[f"{name}, library"] = _relative(part(library), right)
    return results


def _mean(vae: VideoVae, video: Tensor) -> Tensor:
    return vae.moments(vae.pixels(video))[:, : vae.architecture.z_dim]


def plain_copy(vae: VideoVae, dtype: torch.dtype) -> VideoVae:
    """The same weights, contiguous as the library keeps them, running the library's own loop."""
    with torch.device("meta"):
        copy: Any = VideoVae(vae.architecture)
    state = vae.state_dict()
    copy.load_state_dict({name: value.detach().contiguous() for name, value in state.items()}, assign=True)
    copy.prepare_for_inference(dtype, vae.device)
    plain: VideoVae = copy
    return plain


def _relative(found: Tensor, exact: Tensor) -> float:
    exact = exact.float()
    return float((found.float() - exact).norm() / exact.norm())
