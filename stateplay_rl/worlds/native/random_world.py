"""A native world with random weights of the real shapes: for measuring time and memory without any weight file.

Weights are drawn on the device where they stay, in the dtypes that a loaded world has. Pictures are noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stateplay_rl.config.world import Checkpointing
from stateplay_rl.errors import UsageError
from stateplay_rl.worlds.base import WorldSpec
from stateplay_rl.worlds.native.fill import put, tensor_places
from stateplay_rl.worlds.native.package import FLOAT32_MODULES
from stateplay_rl.worlds.native.presets import NativePreset, preset
from stateplay_rl.worlds.native.speed import PLAIN, Speed
from stateplay_rl.worlds.native.text import TEXT_PRESETS, TextEncoder, build_text_model, load_tokenizer, train_tokenizer
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
from stateplay_rl.worlds.native.vae import TEMPORAL_FACTOR, VAE_PRESETS, VaeArchitecture, VideoVae
from stateplay_rl.worlds.native.world import NativeModules, NativeWorld, WorldHashes

VOCABULARY = {"stateplay-5b": 256_384, "arena": 64}
PIXELS = {"stateplay-5b": (480, 832), "arena": (64, 96)}
"""Picture height and width."""
FPS = 20.0
GATE = 0.1
"""Open, so that the state reaches the picture and its kernels cannot be skipped."""


@dataclass(frozen=True)
class WorldSizes:
    """All sizes of a world.

    Args:
        name: of the preset that they come from.
        text: tokens and width of a text context.
        pixels: height and width of a frame.
    """

    name: str
    networks: NativePreset
    vae: VaeArchitecture
    text: tuple[int, int]
    pixels: tuple[int, int]


def sizes_of(name: str, *, shrink: bool = False) -> WorldSizes:
    """Sizes of a preset, or small ones of the same structure: the same code paths in seconds on a CPU."""
    networks, text = preset(name), TEXT_PRESETS[name]
    real = WorldSizes(name, networks, VAE_PRESETS[name], (text.tokens, text.d_model), PIXELS[name])
    if not shrink or name == "arena":
        return real
    small = NativePreset(
        replace(networks.transformer, dim=256, heads=2, layers=3, ffn_dim=512, freq_dim=64, text_dim=64),
        replace(networks.latent_state, state_dim=64, coupling_width=64),
        replace(networks.tokenizer, width=64),
    )
    return WorldSizes(name, small, replace(real.vae, base_dim=16, decoder_base_dim=16), (32, 64), PIXELS["arena"])


@torch.no_grad()
def randomised(build: Callable[[], nn.Module], dtype_of: Callable[[str], torch.dtype], device: torch.device) -> Any:
    """A module built on the meta device, its parameters drawn where they will stay."""
    with torch.device("meta"):
        module = build()
    generator = torch.Generator(device).manual_seed(0)
    places = tensor_places(module)
    for name, parameter in module.named_parameters():
        value = torch.empty(parameter.shape, dtype=dtype_of(name), device=device)
        if name.endswith(".gate"):
            value.fill_(GATE)
        elif "norm" in name or name.endswith("gamma"):
            value.fill_(1.0)
        elif value.dim() < 2:
            value.zero_()
        else:
            value.normal_(std=value[0].numel() ** -0.5, generator=generator)
        put(places[name], value)
    return module.eval().requires_grad_(False)


def random_transformer(networks: NativePreset, device: torch.device, dtype: torch.dtype) -> LatentStateTransformer:
    """A latent-state transformer of these sizes."""

    def dtype_of(parameter: str) -> torch.dtype:
        return torch.float32 if parameter.partition(".")[0] in FLOAT32_MODULES else dtype

    transformer: LatentStateTransformer = randomised(
        lambda: LatentStateTransformer(networks.transformer, networks.latent_state, dtype), dtype_of, device
    )
    return transformer


def random_vae(architecture: VaeArchitecture, device: torch.device, dtype: torch.dtype) -> VideoVae:
    """A video VAE, with the published statistics where there are any."""
    vae: VideoVae = randomised(lambda: VideoVae(architecture), lambda _: dtype, device)
    vae.latents_mean = torch.zeros(vae.architecture.z_dim, device=device)
    vae.latents_std = torch.ones(vae.architecture.z_dim, device=device)
    if vae.architecture.latents_mean:
        vae.use_published_statistics(device)
    vae.prepare_for_inference(dtype, device)
    return vae


def random_text(name: str, folder: Path, device: torch.device, dtype: torch.dtype) -> TextEncoder:
    """The text encoder of a preset; its tokenizer, made of a few words, is written to `folder/google/umt5-xxl`."""
    text = randomised(lambda: build_text_model(TEXT_PRESETS[name], VOCABULARY[name]), lambda _: dtype, device)
    words = folder / "google" / "umt5-xxl"
    words.mkdir(parents=True)
    train_tokenizer(["the opponent waits", "the opponent attacks"], words / "tokenizer.json", 32)
    return TextEncoder(TEXT_PRESETS[name], text, load_tokenizer(words))


class NoText:
    """Stands where a text encoder would: contexts are drawn, so none is held in memory."""

    def __init__(self) -> None:
        self.model = nn.Identity()

    def park(self) -> None:
        """Nothing to put away."""

    def encode(self, prompts: Sequence[str]) -> Tensor:
        raise UsageError(f"this world has no text encoder for {len(prompts)} prompts", "draw the contexts")


def random_networks(sizes: WorldSizes, device: torch.device, dtype: torch.dtype) -> NativeModules:
    """Transformer, tokenizer and VAE; no text encoder."""
    fsq = sizes.networks.tokenizer
    tokenizer = randomised(lambda: TransitionTokenizer(fsq), lambda _: torch.float32, device)
    tokenizer.quantizer.fill_missing(fsq.fsq_levels, device)
    no_text: Any = NoText()
    transformer = random_transformer(sizes.networks, device, dtype)
    return NativeModules(transformer, tokenizer, random_vae(sizes.vae, device, dtype), no_text)


def random_spec(sizes: WorldSizes) -> WorldSpec:
    """What the world's users see of its sizes."""
    return WorldSpec(sizes.name, *sizes.pixels, FPS, sizes.vae.z_dim, sizes.vae.spatial_factor, TEMPORAL_FACTOR)


def random_world(
    sizes: WorldSizes,
    device: torch.device,
    dtype: torch.dtype,
    *,
    checkpointing: Checkpointing = "off",
    speed: Speed = PLAIN,
) -> NativeWorld:
    """A world without text encoder, the same on every rank of the same hardware."""
    return NativeWorld(
        random_spec(sizes),
        random_networks(sizes, device, dtype),
        WorldHashes("0" * 64, "0" * 64),
        device=device,
        compute_dtype=dtype,
        checkpointing=checkpointing,
        speed=speed,
    )
