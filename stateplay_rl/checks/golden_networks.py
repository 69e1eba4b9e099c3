"""Golden files of the networks: weights under the training repository's key names, inputs, outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stateplay_rl.checks.comparison import Comparison, GoldenFolder, GoldenLine, TensorFile
from stateplay_rl.errors import InputError

if TYPE_CHECKING:
    from stateplay_rl.worlds.native.text import TextArchitecture
    from stateplay_rl.worlds.native.vae import VaeArchitecture

TEXT_WEIGHTS = "text_encoder_weights.safetensors"
TEXT_TOLERANCE = 1e-5
POSITION_BUCKETS = 32
"""Relative-position buckets of the published text encoder; the loader knows no other number."""

VAE_WEIGHTS = "vae_weights.safetensors"
VAE_CONFIG = "vae_config.json"
VAE_TOLERANCE = 1e-4


def check_backbone(folder: GoldenFolder, name: str) -> GoldenLine:
    """Bins, hidden states after the stored blocks, velocity: 1e-5 relative, float32 on the CPU.

    The weights must load by their own key names, and must come back under the same names and values.
    """
    from stateplay_rl.worlds.native.keymap import from_training_names, to_training_names
    from stateplay_rl.worlds.native.presets import sizes_from_shapes
    from stateplay_rl.worlds.native.transformer import LatentStateTransformer
    from stateplay_rl.worlds.native.weights import load_exactly

    weights = folder.tensors("backbone_weights.safetensors").tensors
    config = folder.json("backbone_config.json")["config"]
    sizes = sizes_from_shapes(
        {key: tuple(value.shape) for key, value in weights.items()},
        heads=int(config["num_heads"]),
        eps=float(config["eps"]),
    )
    model = LatentStateTransformer(sizes.transformer, sizes.latent_state).eval()
    renamed = from_training_names(weights)
    if renamed.unmatched:
        raise InputError(f"backbone_weights: keys without a place: {', '.join(renamed.unmatched[:5])}", "")
    load_exactly(model, renamed.state, "backbone_weights.safetensors")
    comparison = Comparison(1e-5)
    back = to_training_names(model.state_dict()).state
    comparison.exact("key names, there and back", sorted(back), sorted(weights))
    file = folder.tensors(name)
    for case in file.cases():
        _compare_case(comparison, model, file, case)
    return comparison.line(name)


@torch.no_grad()
def _compare_case(comparison: Comparison, model: object, file: TensorFile, case: str) -> None:
    from stateplay_rl.worlds.native.transformer import LatentStateTransformer
    from stateplay_rl.worlds.preparation import bin_actions

    assert isinstance(model, LatentStateTransformer)
    latents = file[f"{case}.latents"].float()
    batch, slots = latents.shape[0], latents.shape[2]
    actions_BRK = file[f"{case}.keyboard_action"].float()
    bins = torch.stack([torch.from_numpy(bin_actions(rows.numpy(), slots)) for rows in actions_BRK])
    comparison.relative(f"{case}.action_binned", bins, file[f"{case}.action_binned"])
    # One scalar for the whole batch in the public code, one per sample here.
    timesteps_B = file[f"{case}.timestep"].float().expand(batch)
    states: Tensor | None = None
    if model.latent_state is not None:
        _, states = model.state_sequence(latents[:, :, :1], bins)
    blocks = [int(m[1]) for key in file.tensors if (m := re.fullmatch(rf"{re.escape(case)}\.block(\d+)", key))]
    context = file[f"{case}.context"].float()
    velocity, hidden = model.trace(latents, timesteps_B, bins, context, states, keep=blocks)
    for block in sorted(blocks):
        if block not in hidden:
            raise InputError(f"{case}.block{block}: the weights hold {model.sizes.layers} blocks only", "")
        comparison.relative(f"{case}.block{block}", hidden[block], file[f"{case}.block{block}"])
    comparison.relative(f"{case}.pred_video", velocity, file[f"{case}.pred_video"])


@torch.no_grad()
def check_text_encoder(folder: GoldenFolder, name: str) -> GoldenLine:
    """Hidden states at the prompt's positions, and the context with zeros behind it: 1e-5 relative.

    The weights must load by the original file's key names, and must come back under the same names.
    """
    from stateplay_rl.worlds.native.original_names import text_from_original, text_to_original
    from stateplay_rl.worlds.native.text import TIED_EMBEDDING, build_text_model, encode_tokens
    from stateplay_rl.worlds.native.weights import load_exactly

    weights = folder.tensors(TEXT_WEIGHTS)
    file = folder.tensors(name)
    renamed = text_from_original(weights.tensors)
    model = build_text_model(_text_sizes(weights), int(weights["token_embedding.weight"].shape[0]))
    load_exactly(model, renamed, TEXT_WEIGHTS, optional=(TIED_EMBEDDING,))
    comparison = Comparison(TEXT_TOLERANCE)
    comparison.exact("key names, there and back", sorted(text_to_original(renamed)), sorted(weights.tensors))
    for case in _cases_with(file, "ids"):
        mask_BL = file[f"{case}mask"]
        context_BLD = encode_tokens(model, file[f"{case}ids"], mask_BL)
        comparison.relative(f"{case}context", context_BLD, file[f"{case}context"])
        # Positions past the mask hold whatever the public code computed there: nothing reads them.
        hidden_BLD = file[f"{case}hidden"].float() * mask_BL[..., None]
        comparison.relative(f"{case}hidden", context_BLD, hidden_BLD)
    return comparison.line(name)


def _text_sizes(weights: TensorFile) -> TextArchitecture:
    """Sizes of the text encoder, all from its tensors' shapes."""
    from stateplay_rl.worlds.native.text import TextArchitecture

    buckets, heads = weights["blocks.0.pos_embedding.embedding.weight"].shape
    if buckets != POSITION_BUCKETS:
        raise InputError(f"{TEXT_WEIGHTS}: {buckets} position buckets, not {POSITION_BUCKETS}", "")
    inner, width = weights["blocks.0.attn.q.weight"].shape
    return TextArchitecture(
        tokens=0,  # only prompts are padded to it; the golden ids have their own length
        d_model=width,
        num_layers=len({key.split(".")[1] for key in weights.tensors if key.startswith("blocks.")}),
        num_heads=heads,
        d_kv=inner // heads,
        d_ff=weights["blocks.0.ffn.fc1.weight"].shape[0],
    )


@torch.no_grad()
def check_vae(folder: GoldenFolder, name: str) -> GoldenLine:
    """Video to normalised latents, and latents to video before clamping: 1e-4 relative.

    The weights must load by the original file's key names, and must come back under the same names.
    """
    from stateplay_rl.worlds.native.original_names import vae_from_original, vae_to_original
    from stateplay_rl.worlds.native.vae import VideoVae

    weights = folder.tensors(VAE_WEIGHTS).tensors
    config = folder.json(VAE_CONFIG)
    file = folder.tensors(name)
    comparison = Comparison(VAE_TOLERANCE)
    renamed = vae_from_original(weights)
    back = vae_to_original(renamed, num_res_blocks=int(config["num_res_blocks"]))
    comparison.exact("key names, there and back", sorted(back), sorted(weights))
    for case in _cases_with(file, "latents"):
        vae = VideoVae(_vae_sizes(config, file, case))
        vae.load_weights(weights, VAE_WEIGHTS)
        vae.prepare_for_inference(torch.float32, torch.device("cpu"))
        latents_BCfHW = file[f"{case}latents"].float()
        moments = vae.moments(file[f"{case}video"].float())
        encoded = vae.normalise(moments[:, : vae.architecture.z_dim])
        comparison.relative(f"{case}latents", encoded, latents_BCfHW)
        comparison.relative(f"{case}decoded", vae.decode_pixels(latents_BCfHW), file[f"{case}decoded"])
    return comparison.line(name)


def _vae_sizes(config: Mapping[str, Any], file: TensorFile, case: str) -> VaeArchitecture:
    """Sizes from the config file; statistics of the latents from the case, or from the file's top."""
    from stateplay_rl.worlds.native.vae import VaeArchitecture

    mean, std = (file[f"{case}{key}" if f"{case}{key}" in file.tensors else key] for key in ("mean", "std"))
    return VaeArchitecture(
        base_dim=int(config["dim"]),
        decoder_base_dim=int(config["dec_dim"]),
        z_dim=int(config["z_dim"]),
        dim_mult=tuple(int(factor) for factor in config["dim_mult"]),
        num_res_blocks=int(config["num_res_blocks"]),
        temporal_downsample=tuple(bool(halved) for halved in config["temporal_downsample"]),
        patch_size=int(config["patch_size"]),
        latents_mean=tuple(mean.tolist()),
        latents_std=tuple(std.tolist()),
    )


def _cases_with(file: TensorFile, tensor: str) -> list[str]:
    """Key prefixes of the cases that hold `tensor`: an empty one, or `case0.`, `case1.`, ..."""
    return sorted(key.removesuffix(tensor) for key in file.tensors if key == tensor or key.endswith(f".{tensor}"))


def check_explicit_state(folder: GoldenFolder, name: str) -> GoldenLine:
    """The key names must be recognised as those of an explicit-state model, which `audit-ckpt` refuses."""
    from stateplay_rl.checks.audit.classify import EXPLICIT, classify
    from stateplay_rl.worlds.native.prefixes import strip_name

    comparison = Comparison(0.0)
    names = [strip_name(key)[0] for key in folder.tensors(name).tensors]
    comparison.exact("class of the model", classify(names), EXPLICIT)
    return comparison.line(name)
