"""A tiny random native world of the real classes, for tests: 32x32 pixels, 9 frames (3 latent slots)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from stateplay_rl.nft.randomness import generator
from stateplay_rl.stores.atomic import sha256_json
from stateplay_rl.worlds.base import ConditionInputs, WorldSpec
from stateplay_rl.worlds.native.initialise import initialise
from stateplay_rl.worlds.native.presets import LatentStateSizes, TokenizerSizes, TransformerSizes
from stateplay_rl.worlds.native.text import (
    TextArchitecture,
    TextEncoder,
    build_text_model,
    load_tokenizer,
    train_tokenizer,
)
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
from stateplay_rl.worlds.native.vae import VaeArchitecture, VideoVae
from stateplay_rl.worlds.native.world import NativeModules, NativeWorld, WorldHashes

PROMPTS = (
    "NPC strategy: Control. The opponent keeps away and throws.",
    "NPC strategy: Defense. It blocks high, then punishes.",
    "NPC strategy: Rush.",
)
FRAMES, SLOTS, HEIGHT, WIDTH = 9, 3, 32, 32

TINY_TRANSFORMER = TransformerSizes(in_channels=4, dim=48, heads=2, layers=2, ffn_dim=64, freq_dim=32, text_dim=16)
TINY_LATENT_STATE = LatentStateSizes(state_dim=16, state_tokens=4, fsq_levels=(8, 8, 8), coupling_width=16, mlp_ratio=2)
TINY_TOKENIZER = TokenizerSizes(in_channels=4, width=16, heads=4, state_tokens=4, fsq_levels=(8, 8, 8))
TINY_VAE = VaeArchitecture(
    base_dim=8,
    decoder_base_dim=8,
    z_dim=4,
    dim_mult=(1, 1, 1),
    num_res_blocks=1,
    temporal_downsample=(True, True),
    patch_size=2,
    slots_per_call=4,
    samples_per_call=2,
    channels_last=True,
)
TINY_TEXT = TextArchitecture(tokens=16, d_model=16, num_layers=1, num_heads=2, d_kv=8, d_ff=32)


def tiny_transformer(
    seed: int = 0, compute_dtype: torch.dtype = torch.float32, latent: bool = True
) -> LatentStateTransformer:
    """A transformer whose every part matters: gates open, output head not zero."""
    transformer = LatentStateTransformer(TINY_TRANSFORMER, TINY_LATENT_STATE if latent else None, compute_dtype)
    initialise(transformer, seed)
    draws = generator(seed + 1)
    with torch.no_grad():
        transformer.proj_out.weight.copy_(torch.randn(transformer.proj_out.weight.shape, generator=draws) * 0.2)
        for block in transformer.blocks:
            if block.latent_state_attention is not None:
                block.latent_state_attention.gate.fill_(0.7)
    return transformer


def tiny_modules(folder: Path, seed: int = 0, compute_dtype: torch.dtype = torch.float32) -> NativeModules:
    """The four networks; `folder` receives `tokenizer.json`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = VideoVae(TINY_VAE)
        vocabulary = train_tokenizer(PROMPTS, folder / "tokenizer.json")
        text_model = build_text_model(TINY_TEXT, vocabulary)
    vae.prepare_for_inference(compute_dtype, torch.device("cpu"))
    vae.set_latent_statistics(torch.full((4,), 0.1), torch.full((4,), 0.5))
    tokenizer = TransitionTokenizer(TINY_TOKENIZER)
    initialise(tokenizer, seed + 2)
    return NativeModules(
        tiny_transformer(seed, compute_dtype),
        tokenizer,
        vae,
        TextEncoder(TINY_TEXT, text_model, load_tokenizer(folder / "tokenizer.json")),
    )


def tiny_world(tmp_path: Path | None = None, seed: int = 0, compute_dtype: torch.dtype = torch.float32) -> NativeWorld:
    """A fresh tiny world; the same seed gives the same weights."""
    with TemporaryDirectory() as folder:
        modules = tiny_modules(tmp_path or Path(folder), seed, compute_dtype)
    spec = WorldSpec("tiny", HEIGHT, WIDTH, 20.0, 4, 8, 4)
    hashes = WorldHashes(sha256_json(["world", seed]), sha256_json(["encoders", seed]))
    return NativeWorld(spec, modules, hashes, device=torch.device("cpu"), compute_dtype=compute_dtype)


def tiny_inputs(count: int = 2, seed: int = 0) -> list[ConditionInputs]:
    """Random conditions of the tiny world's size."""
    draws = np.random.default_rng(seed)
    return [
        ConditionInputs(
            condition_id=f"condition-{seed}-{index}",
            first_frame_hwc=draws.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8),
            held_actions_RK=np.repeat(draws.integers(0, 2, (3, 11)), 3, axis=0).astype(np.float32),
            prompt=PROMPTS[index % len(PROMPTS)],
            latent_frames=SLOTS,
        )
        for index in range(count)
    ]
