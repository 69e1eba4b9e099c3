"""A native world's weight files: streaming them with every key checked, and their hashes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import torch

from stateplay_rl.config.world import WorldConfig, WorldFiles
from stateplay_rl.errors import InputError
from stateplay_rl.stores.atomic import sha256_file, sha256_json
from stateplay_rl.worlds.native.architecture import Architecture, architecture_of
from stateplay_rl.worlds.native.fill import fill_exactly, require_filled, stored_under_our_names
from stateplay_rl.worlds.native.keymap import TrainingLayout, Translations, any_to_ours, to_training_names
from stateplay_rl.worlds.native.original_names import text_name, vae_name
from stateplay_rl.worlds.native.presets import NativePreset
from stateplay_rl.worlds.native.shards import shards_of
from stateplay_rl.worlds.native.text import TEXT_PRESETS, TextArchitecture, TextEncoder, build_text_model, check_rows
from stateplay_rl.worlds.native.text import load_tokenizer as load_text_tokenizer
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
from stateplay_rl.worlds.native.vae import STATISTICS, VAE_PRESETS, VaeArchitecture, VideoVae
from stateplay_rl.worlds.native.weight_files import StoredTensor
from stateplay_rl.worlds.native.world import NativeModules, WorldHashes

Sizes = NativePreset | VaeArchitecture | TextArchitecture

FLOAT32_MODULES = ("latent_state_rollout", "transition_predictor")
"""Kept in float32 whatever the compute dtype: a recursion over slots, small beside the backbone."""

EMBEDDING = "shared.weight"
TIED_EMBEDDING = "encoder.embed_tokens.weight"
META = torch.device("meta")


def load_modules(config: WorldConfig, device: torch.device) -> NativeModules:
    """The networks of a resolved world config, checked key by key before any value is read.

    Raises:
        InputError: a file is missing, or its keys do not fit the sizes (named).
        CorruptionError: a file is not readable.
    """
    architecture, files = architecture_of(config), config.files
    dtype: torch.dtype = getattr(torch, config.compute_dtype)
    # The text encoder first: its file is the largest, so that what is mapped of it is gone before the rest.
    text = _load_text(files, TEXT_PRESETS[config.preset], dtype, device)
    transformer, layout = load_transformer(config, architecture, dtype, device)
    tokenizer = load_tokenizer(files.transition_tokenizer, architecture.sizes, device)
    return NativeModules(transformer, tokenizer, _load_vae(config, dtype, device), text, layout)


def world_hashes(config: WorldConfig) -> WorldHashes:
    """Hashes of all weight files and of the sizes that give them their meaning."""
    files = config.files
    encoders = {
        "vae": _hash([files.vae]),
        "text_encoder": _hash([files.text_encoder]),
        "text_tokenizer": sha256_file(_tokenizer_file(files.text_tokenizer)),
        "transition_tokenizer": _hash([files.transition_tokenizer]),
        "sizes": _plain((VAE_PRESETS[config.preset], TEXT_PRESETS[config.preset])),
    }
    world = {
        "encoders": encoders,
        "checkpoint": [sha256_file(file) for path in files.checkpoint for file in shards_of(path)],
        "key_map": config.key_map,
        "sizes": _plain((architecture_of(config).sizes,)),
    }
    if files.base:
        world["base"] = [sha256_file(file) for path in files.base for file in shards_of(path)]
    return WorldHashes(sha256_json(world), sha256_json(encoders))


def load_transformer(
    config: WorldConfig, architecture: Architecture, dtype: torch.dtype, device: torch.device
) -> tuple[LatentStateTransformer, TrainingLayout]:
    """The transformer from checkpoint and base, streamed, and how the checkpoint spells its tensors."""
    translations = tuple(sorted(config.key_map.items()))
    stored, source = transformer_tensors(config.files, translations)
    with META:
        transformer = LatentStateTransformer(architecture.sizes.transformer, architecture.sizes.latent_state, dtype)

    def dtype_of(name: str, _: torch.dtype) -> torch.dtype:
        return torch.float32 if name.partition(".")[0] in FLOAT32_MODULES else dtype

    fill_exactly(transformer, stored, source, dtype_of=dtype_of, device=device)
    require_filled(transformer, source)
    scalars = [name for name, tensor in stored.items() if tensor.shape == ()]
    names = to_training_names(dict.fromkeys(scalars, 0), translations).state
    return transformer, TrainingLayout(translations, frozenset(names))


def transformer_tensors(files: WorldFiles, translations: Translations) -> tuple[dict[str, StoredTensor], str]:
    """Our name -> stored tensor of the assembled transformer (the checkpoint's own win), and the files' names.

    Raises:
        InputError, CorruptionError: as `stored_under_our_names`.
    """
    checkpoint = stored_under_our_names(files.checkpoint, lambda name: any_to_ours(name, translations))
    base = stored_under_our_names(files.base, any_to_ours) if files.base else {}
    return {**base, **checkpoint}, ", ".join(str(path) for path in (*files.checkpoint, *files.base))


def load_tokenizer(path: Path, sizes: NativePreset, device: torch.device) -> TransitionTokenizer:
    """The frozen transition tokenizer, float32.

    Raises:
        InputError: keys or FSQ levels that do not fit.
    """
    stored = stored_under_our_names([path], lambda name: name.removeprefix("transition_tokenizer."))
    with META:
        tokenizer = TransitionTokenizer(sizes.tokenizer)
    buffers = ("quantizer.levels", "quantizer.basis")
    fill_exactly(
        tokenizer,
        stored,
        str(path),
        dtype_of=lambda _, kept: torch.float32 if kept.is_floating_point else kept,
        device=device,
        # The trainer's logger leaves buffers out; the audit says who states their values then.
        optional=buffers if not set(buffers) & stored.keys() else (),
    )
    tokenizer.quantizer.fill_missing(sizes.tokenizer.fsq_levels, device)
    require_filled(tokenizer, str(path))
    levels = tuple(tokenizer.quantizer.levels.tolist())
    if levels != sizes.tokenizer.fsq_levels:
        raise InputError(
            f"{path}: FSQ levels {levels}, not {sizes.tokenizer.fsq_levels}",
            "give the tokenizer that the supervised run used",
        )
    return tokenizer


def _load_text(
    files: WorldFiles, architecture: TextArchitecture, dtype: torch.dtype, device: torch.device
) -> TextEncoder:
    source = str(files.text_encoder)
    stored = stored_under_our_names([files.text_encoder], text_name)
    stored.pop(TIED_EMBEDDING, None)
    if EMBEDDING not in stored:
        raise InputError(f"{source}: key {EMBEDDING} is missing", "give the text encoder's weight file")
    rows = stored[EMBEDDING].shape[0]
    with META:
        model = build_text_model(architecture, rows)
    tokenizer = load_text_tokenizer(files.text_tokenizer)
    check_rows(tokenizer, rows, files.text_tokenizer, source)
    fill_exactly(model, stored, source, dtype_of=lambda *_: dtype, device=device, optional=(TIED_EMBEDDING,))
    model.encoder.embed_tokens.weight = model.shared.weight
    require_filled(model, source)
    return TextEncoder(architecture, model.requires_grad_(False), tokenizer)


def _load_vae(config: WorldConfig, dtype: torch.dtype, device: torch.device) -> VideoVae:
    architecture, source = VAE_PRESETS[config.preset], str(config.files.vae)
    stored = stored_under_our_names([config.files.vae], vae_name)
    with META:
        vae = VideoVae(architecture)
    published = STATISTICS if architecture.latents_mean else ()
    fill_exactly(
        vae,
        stored,
        source,
        dtype_of=lambda name, _: torch.float32 if name in STATISTICS else dtype,
        device=device,
        optional=published,
    )
    if published and not set(published) & stored.keys():
        vae.use_published_statistics(device)
    require_filled(vae, source)
    vae.prepare_for_inference(dtype, device)
    return vae


def _hash(paths: Iterable[Path]) -> str:
    """sha256 of one file, or over those of several shards."""
    hashes = [sha256_file(file) for path in paths for file in shards_of(path)]
    return hashes[0] if len(hashes) == 1 else sha256_json(hashes)


def _tokenizer_file(path: Path) -> Path:
    return path / "tokenizer.json" if path.is_dir() else path


def _plain(sizes: tuple[Sizes, ...]) -> list[dict[str, object]]:
    """Sizes as JSON; fields that only change how fast the result comes are left out."""
    speed_only = {"slots_per_call", "samples_per_call", "channels_last"}
    plain = []
    for part in sizes:
        plain.append({k: v for k, v in dataclasses.asdict(part).items() if k not in speed_only})
    return plain
