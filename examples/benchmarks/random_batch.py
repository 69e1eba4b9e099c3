"""A world with random weights of the real shapes, and a made-up batch for it: what benchmarks of training need.

Text contexts are random: no text encoder is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from stateplay_rl.nft.randomness import DrawKey, normal
from stateplay_rl.stages.train_nft.objective import RealClip
from stateplay_rl.worlds.base import ConditionBatch, WorldSpec
from stateplay_rl.worlds.native.package import FLOAT32_MODULES
from stateplay_rl.worlds.native.presets import NativePreset, preset
from stateplay_rl.worlds.native.text import TEXT_PRESETS
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
from stateplay_rl.worlds.native.vae import TEMPORAL_FACTOR, VAE_PRESETS, VaeArchitecture, VideoVae
from stateplay_rl.worlds.native.world import NativeModules, NativeWorld, WorldHashes

PIXELS = {"arena": (64, 96), "stateplay-5b": (480, 832)}
USUAL_DTYPE = {"arena": "float32", "stateplay-5b": "bfloat16"}
OPEN_GATE = 0.1
PROMPT_TOKENS = 24
FPS = 20.0


@dataclass(frozen=True)
class Sizes:
    """All sizes of a world.

    Args:
        text: tokens and width of a text context.
        pixels: height and width of a frame.
    """

    networks: NativePreset
    vae: VaeArchitecture
    text: tuple[int, int]
    pixels: tuple[int, int]


def sizes_of(name: str, *, shrink: bool = False) -> Sizes:
    """Sizes of a preset, or small ones of the same structure: the same code paths in seconds on a CPU."""
    networks, text = preset(name), TEXT_PRESETS[name]
    real = Sizes(networks, VAE_PRESETS[name], (text.tokens, text.d_model), PIXELS[name])
    if not shrink or name == "arena":
        return real
    small = NativePreset(
        replace(networks.transformer, dim=256, heads=2, layers=3, ffn_dim=512, freq_dim=64, text_dim=64),
        replace(networks.latent_state, state_dim=64, coupling_width=64),
        replace(networks.tokenizer, width=64),
    )
    return Sizes(small, replace(real.vae, base_dim=16, decoder_base_dim=16), (32, 64), PIXELS["arena"])


def random_world(
    name: str, sizes: Sizes, device: torch.device, compute_dtype: str | None = None, *, checkpointing: bool
) -> NativeWorld:
    """The real classes with random weights, drawn on the device itself: the same on every rank of the same hardware.

    Args:
        compute_dtype: None for the world's usual one.
    """
    compute = getattr(torch, compute_dtype or USUAL_DTYPE[name])
    draws = torch.Generator(device).manual_seed(0)
    torch.manual_seed(0)  # the VAE keeps the values of its construction
    # Made on the device: buffers hold their real values, and billions of draws take seconds.
    with torch.device(device):
        transformer = LatentStateTransformer(sizes.networks.transformer, sizes.networks.latent_state, compute)
        tokenizer = TransitionTokenizer(sizes.networks.tokenizer)
        vae = VideoVae(sizes.vae)
    for parameter_name, parameter in transformer.named_parameters():
        is_float32 = parameter_name.partition(".")[0] in FLOAT32_MODULES
        parameter.data = parameter.data.to(torch.float32 if is_float32 else compute)
    for module in (transformer, tokenizer):
        fill(module, draws)
    vae.prepare_for_inference(compute, device)
    # Text contexts are made up, so no text encoder is held.
    text = cast(Any, SimpleNamespace(model=nn.Identity()))
    spec = WorldSpec(name, *sizes.pixels, FPS, sizes.vae.z_dim, sizes.vae.spatial_factor, TEMPORAL_FACTOR)
    return NativeWorld(
        spec,
        NativeModules(transformer, tokenizer, vae, text),
        WorldHashes("0" * 64, "0" * 64),
        device=device,
        compute_dtype=compute,
        gradient_checkpointing=checkpointing,
    )


@torch.no_grad()
def fill(module: nn.Module, draws: torch.Generator) -> None:
    """Weights of a sensible scale everywhere; coupling gates open, so that every part matters."""
    for name, parameter in module.named_parameters():
        if name.endswith("gate"):
            parameter.fill_(OPEN_GATE)
        elif name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() < 2:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, 1.0 / math.sqrt(parameter[0].numel()), generator=draws)


@dataclass
class Batch:
    """Made-up conditions and clips of a world, and the candidates that were sampled."""

    world: NativeWorld
    ids: tuple[str, ...]
    slots: int
    text: tuple[int, int]
    conditions: dict[str, ConditionBatch] = field(default_factory=dict)
    clips: dict[str, RealClip] = field(default_factory=dict)
    latents: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def prepare(self) -> None:
        """Encode a random first frame per condition; clips are random latents with their codes."""
        spec, device = self.world.spec, self.world.device
        for condition_id in self.ids:
            draws = np.random.default_rng(DrawKey(0, "frame", condition=condition_id).seed())
            frame_1hwC = draws.integers(0, 256, (1, spec.frame_height, spec.frame_width, 3), dtype=np.uint8)
            first_C1HW = self.world.encode_video(frame_1hwC)
            text_1LD = normal(DrawKey(0, "text", condition=condition_id), (1, *self.text))
            text_1LD[:, PROMPT_TOKENS:] = 0
            actions = draws.integers(0, 2, (1, self.slots, spec.buttons)).astype(np.float32)
            self.conditions[condition_id] = ConditionBatch(
                (condition_id,), first_C1HW[None].to(device), torch.from_numpy(actions).to(device), text_1LD.to(device)
            )
            shape = (spec.latent_channels, self.slots, *first_C1HW.shape[-2:])
            clip = normal(DrawKey(0, "clip", condition=condition_id), shape)
            self.clips[condition_id] = RealClip(clip, self.world.transition_codes(clip[None].to(device))[0].cpu())

    def conditions_of(self, ids: Sequence[str]) -> ConditionBatch:
        """Rows of one condition a call, as training asks for them."""
        parts = [self.conditions[i] for i in ids]
        return ConditionBatch(
            tuple(ids),
            torch.cat([p.first_latent_BC1HW for p in parts]),
            torch.cat([p.action_bins_BfK for p in parts]),
            torch.cat([p.text_BLD for p in parts]),
        )
