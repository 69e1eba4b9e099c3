"""A native world's weight files: loading them with every key checked, and their hashes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from stateplay_rl.config.world import WorldConfig, WorldFiles
from stateplay_rl.errors import InputError
from stateplay_rl.stores.atomic import sha256_file, sha256_json
from stateplay_rl.worlds.native.keymap import from_training_names
from stateplay_rl.worlds.native.presets import NativePreset, preset
from stateplay_rl.worlds.native.text import TEXT_PRESETS, TextArchitecture, TextEncoder
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
from stateplay_rl.worlds.native.vae import VAE_PRESETS, VaeArchitecture, VideoVae
from stateplay_rl.worlds.native.weights import load_exactly, read_safetensors, read_weights
from stateplay_rl.worlds.native.world import NativeModules, WorldHashes

Sizes = NativePreset | VaeArchitecture | TextArchitecture

FLOAT32_MODULES = ("latent_state_rollout", "transition_predictor")
"""Kept in float32 whatever the compute dtype: a recursion over slots, small beside the backbone."""


def load_modules(config: WorldConfig, device: torch.device) -> NativeModules:
    """The networks of a resolved world config, checked key by key.

    Raises:
        InputError: a file is missing, or its keys do not fit the preset (named).
        CorruptionError: a file is not readable.
    """
    sizes, files = preset(config.preset), config.files
    dtype: torch.dtype = getattr(torch, config.compute_dtype)
    vae = VideoVae(VAE_PRESETS[config.preset])
    vae.load_weights(read_weights([files.vae]), str(files.vae))
    vae.prepare_for_inference(dtype, device)
    text = TextEncoder.from_weights(
        TEXT_PRESETS[config.preset],
        read_weights([files.text_encoder]),
        files.text_tokenizer,
        str(files.text_encoder),
    ).to(device, dtype)
    return NativeModules(
        _load_transformer(config, sizes, dtype).to(device),
        _load_tokenizer(files, sizes).to(device),
        vae,
        text,
    )


def world_hashes(config: WorldConfig) -> WorldHashes:
    """Hashes of all weight files and of the sizes that give them their meaning."""
    files = config.files
    encoders = {
        "vae": sha256_file(files.vae),
        "text_encoder": sha256_file(files.text_encoder),
        "text_tokenizer": sha256_file(_tokenizer_file(files.text_tokenizer)),
        "transition_tokenizer": sha256_file(files.transition_tokenizer),
        "sizes": _plain((VAE_PRESETS[config.preset], TEXT_PRESETS[config.preset])),
    }
    world = {
        "encoders": encoders,
        "checkpoint": [sha256_file(path) for path in files.checkpoint],
        "key_map": config.key_map,
        "sizes": _plain((preset(config.preset),)),
    }
    return WorldHashes(sha256_json(world), sha256_json(encoders))


def _load_transformer(config: WorldConfig, sizes: NativePreset, dtype: torch.dtype) -> LatentStateTransformer:
    source = ", ".join(str(path) for path in config.files.checkpoint)
    renamed = from_training_names(read_safetensors(config.files.checkpoint), tuple(sorted(config.key_map.items())))
    if renamed.unmatched:
        raise InputError(
            f"{source}: {len(renamed.unmatched)} keys that this model does not know, first "
            + ", ".join(renamed.unmatched[:5]),
            "translate them with key_map in the world file, or inspect the file with sprl audit-ckpt",
        )
    transformer = LatentStateTransformer(sizes.transformer, sizes.latent_state, dtype)
    for name, module in transformer.named_children():
        module.to(torch.float32 if name in FLOAT32_MODULES else dtype)
    load_exactly(transformer, renamed.state, source)
    return transformer


def _load_tokenizer(files: WorldFiles, sizes: NativePreset) -> TransitionTokenizer:
    tokenizer = TransitionTokenizer(sizes.tokenizer)
    weights = read_weights([files.transition_tokenizer])
    levels = tuple(weights["quantizer.levels"].tolist()) if "quantizer.levels" in weights else None
    load_exactly(tokenizer, weights, str(files.transition_tokenizer))
    if levels != sizes.tokenizer.fsq_levels:
        raise InputError(
            f"{files.transition_tokenizer}: FSQ levels {levels}, not {sizes.tokenizer.fsq_levels}",
            "give the tokenizer that the supervised run used",
        )
    return tokenizer


def _tokenizer_file(path: Path) -> Path:
    return path / "tokenizer.json" if path.is_dir() else path


def _plain(sizes: tuple[Sizes, ...]) -> list[dict[str, object]]:
    """Sizes as JSON; fields that only change how fast the result comes are left out."""
    speed_only = {"slots_per_call", "samples_per_call", "channels_last"}
    plain = []
    for part in sizes:
        plain.append({k: v for k, v in dataclasses.asdict(part).items() if k not in speed_only})
    return plain
