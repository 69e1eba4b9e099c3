"""Weight files of a world, written as the arena recipe writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from stateplay_rl.errors import InputError
from stateplay_rl.stores.atomic import sha256_file, write_bytes, write_json
from stateplay_rl.worlds.native.keymap import to_training_names
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.weights import write_safetensors
from stateplay_rl.worlds.native.world import NativeModules
from stateplay_rl.worlds.world_files import (
    LATENT_WORLD,
    TEXT_ENCODER,
    TEXT_TOKENIZER,
    TRANSITION_TOKENIZER,
    VAE,
    WEIGHT_HASHES,
)


def transformer_weights(transformer: LatentStateTransformer) -> dict[str, Tensor]:
    """The whole transformer under the training repository's key names.

    Raises:
        InputError: a key has no training name (LoRA must be merged first).
    """
    renamed = to_training_names(transformer.state_dict())
    if renamed.unmatched:
        raise InputError(f"no training name for {renamed.unmatched[:3]}", "merge the LoRA weights first")
    return renamed.state


def write_world_files(
    folder: Path,
    modules: NativeModules,
    text_tokenizer: Path,
    metadata: Mapping[str, str],
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, str]:
    """Write the five files of a world and `weights.json` with their sha256.

    Args:
        folder: where to write; existing files of these names are replaced.
        modules: the networks.
        text_tokenizer: the `tokenizer.json` to copy.
        metadata: recorded in each safetensors header (seed, steps, ...).
        dtype: dtype of stored floating-point weights; latent statistics stay float32.

    Returns:
        file name -> sha256.
    """
    parts: dict[str, Mapping[str, Tensor]] = {
        LATENT_WORLD: transformer_weights(modules.transformer),
        TRANSITION_TOKENIZER: modules.tokenizer.state_dict(),
        VAE: modules.vae.export_weights(),
        TEXT_ENCODER: modules.text.export_weights(),
    }
    hashes: dict[str, str] = {}
    for name, tensors in parts.items():
        stored = {key: _stored(key, value, dtype) for key, value in tensors.items()}
        write_safetensors(folder / name, stored, metadata)
        hashes[name] = sha256_file(folder / name)
    write_bytes(folder / TEXT_TOKENIZER, text_tokenizer.read_bytes())
    hashes[TEXT_TOKENIZER] = sha256_file(folder / TEXT_TOKENIZER)
    write_json(folder / WEIGHT_HASHES, hashes)
    return hashes


def _stored(key: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    keep = key in ("latents_mean", "latents_std") or not value.is_floating_point()
    return value if keep else value.to(dtype)
