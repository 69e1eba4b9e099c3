"""Key names of the original Wan files (`Wan2.2_VAE.pth`, `models_t5_umt5-xxl-enc-bf16.pth`), both ways.

diffusers' own single-file converter knows the Wan2.1 VAE only; the nesting of the Wan2.2 VAE
(`X.downsamples.i.downsamples.j`) is mapped here. A key that no rule matches is an error, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from stateplay_rl.errors import InputError

Value = TypeVar("Value")

VAE_MARK = "encoder.conv1.weight"
"""A key that only the original VAE layout has."""

TEXT_MARK = "token_embedding.weight"
"""A key that only the original text encoder layout has."""

_VAE_ROOTS = {
    "conv1": "quant_conv",
    "conv2": "post_quant_conv",
    **{
        f"{side}.{theirs}": f"{side}.{ours}"
        for side in ("encoder", "decoder")
        for theirs, ours in (
            ("conv1", "conv_in"),
            ("middle.0", "mid_block.resnets.0"),
            ("middle.1", "mid_block.attentions.0"),
            ("middle.2", "mid_block.resnets.1"),
            ("head.0", "norm_out"),
            ("head.2", "conv_out"),
        )
    },
}
_RESIDUAL = {
    "residual.0": "norm1",
    "residual.2": "conv1",
    "residual.3": "norm2",
    "residual.6": "conv2",
    "shortcut": "conv_shortcut",
}
_SIDES = {"encoder": "down", "decoder": "up"}
_VAE_LEVEL = re.compile(r"(encoder|decoder)\.(down|up)samples\.(\d+)\.\2samples\.(\d+)\.(.+)")
_OUR_RESNET = re.compile(r"(encoder|decoder)\.(?:down|up)_blocks\.(\d+)\.resnets\.(\d+)\.(.+)")
_OUR_SAMPLER = re.compile(r"(encoder|decoder)\.(?:down|up)_blocks\.(\d+)\.(?:down|up)sampler\.(.+)")

_OUR_VAE = re.compile(
    r"(post_)?quant_conv\.|(encoder|decoder)\.(conv_in|conv_out|norm_out|mid_block|down_blocks|up_blocks)\."
)

_TEXT_ROOTS = {
    "token_embedding.weight": "shared.weight",
    "norm.weight": "encoder.final_layer_norm.weight",
}
_TEXT_BLOCK = {
    "norm1.weight": "layer.0.layer_norm.weight",
    **{f"attn.{part}.weight": f"layer.0.SelfAttention.{part}.weight" for part in ("q", "k", "v", "o")},
    "pos_embedding.embedding.weight": "layer.0.SelfAttention.relative_attention_bias.weight",
    "norm2.weight": "layer.1.layer_norm.weight",
    "ffn.gate.0.weight": "layer.1.DenseReluDense.wi_0.weight",
    "ffn.fc1.weight": "layer.1.DenseReluDense.wi_1.weight",
    "ffn.fc2.weight": "layer.1.DenseReluDense.wo.weight",
}


def vae_name(name: str) -> str | None:
    """Name inside `VideoVae` of a name of either layout (its statistics have one name); None when unknown."""
    if name in ("latents_mean", "latents_std"):
        return name
    if _OUR_VAE.match(name):
        return f"model.{name}"
    ours = _vae_ours(name)
    return None if ours is None else f"model.{ours}"


def text_name(name: str) -> str | None:
    """transformers' name of a name of either layout; None when unknown."""
    if name == "shared.weight" or name.startswith("encoder."):
        return name
    return _text(name, r"blocks", _TEXT_ROOTS, _TEXT_BLOCK, "encoder.block")


def vae_from_original(state: Mapping[str, Value]) -> dict[str, Value]:
    """Original VAE names -> diffusers' names; values are not touched.

    Raises:
        InputError: naming keys that no rule matches.
    """
    return _rename(state, _vae_ours, "Wan2.2 VAE")


def vae_to_original(state: Mapping[str, Value], num_res_blocks: int) -> dict[str, Value]:
    """Inverse of `vae_from_original`; a level's up- or downsampler follows its residual blocks.

    Args:
        state: diffusers' names.
        num_res_blocks: residual blocks of an encoder level; a decoder level has one more.

    Raises:
        InputError: naming keys that no rule matches.
    """
    return _rename(state, lambda name: _vae_theirs(name, num_res_blocks), "diffusers VAE")


def text_from_original(state: Mapping[str, Value]) -> dict[str, Value]:
    """Original text encoder names -> transformers' names; values are not touched.

    Raises:
        InputError: naming keys that no rule matches.
    """
    return _rename(state, lambda name: _text(name, r"blocks", _TEXT_ROOTS, _TEXT_BLOCK, "encoder.block"), "T5")


def text_to_original(state: Mapping[str, Value]) -> dict[str, Value]:
    """Inverse of `text_from_original`.

    Raises:
        InputError: naming keys that no rule matches.
    """
    roots, block = _inverse(_TEXT_ROOTS), _inverse(_TEXT_BLOCK)
    return _rename(state, lambda name: _text(name, r"encoder\.block", roots, block, "blocks"), "UMT5")


def _vae_ours(name: str) -> str | None:
    if match := _VAE_LEVEL.fullmatch(name):
        side, kind, level, index, rest = match.groups()
        if _SIDES[side] != kind:
            return None
        stem = f"{side}.{kind}_blocks.{level}"
        if rest.startswith(("resample.", "time_conv.")):
            return f"{stem}.{kind}sampler.{rest}"
        inner = _replace_prefix(rest, _RESIDUAL)
        return None if inner is None else f"{stem}.resnets.{index}.{inner}"
    return _middle(_replace_prefix(name, _VAE_ROOTS), _RESIDUAL)


def _vae_theirs(name: str, num_res_blocks: int) -> str | None:
    if match := _OUR_RESNET.fullmatch(name):
        side, level, index, rest = match.groups()
        kind = _SIDES[side]
        inner = _replace_prefix(rest, _inverse(_RESIDUAL))
        return None if inner is None else f"{side}.{kind}samples.{level}.{kind}samples.{index}.{inner}"
    if match := _OUR_SAMPLER.fullmatch(name):
        side, level, rest = match.groups()
        kind = _SIDES[side]
        index = num_res_blocks + (side == "decoder")
        return f"{side}.{kind}samples.{level}.{kind}samples.{index}.{rest}"
    return _replace_prefix(_middle(name, _inverse(_RESIDUAL)) or name, _inverse(_VAE_ROOTS))


def _middle(name: str | None, inner: Mapping[str, str]) -> str | None:
    """Rename inside the two residual blocks of the middle; other names stay as they are."""
    if name is None or (match := re.fullmatch(r"(.*mid_block\.resnets\.\d)\.(.+)", name)) is None:
        return name
    renamed = _replace_prefix(match[2], inner)
    return None if renamed is None else f"{match[1]}.{renamed}"


def _text(name: str, stem: str, roots: Mapping[str, str], block: Mapping[str, str], target: str) -> str | None:
    if name in roots:
        return roots[name]
    match = re.fullmatch(rf"{stem}\.(\d+)\.(.+)", name)
    return f"{target}.{match[1]}.{block[match[2]]}" if match and match[2] in block else None


def _replace_prefix(name: str, table: Mapping[str, str]) -> str | None:
    """Replace the prefix of whole name parts that `table` holds."""
    for prefix, replacement in table.items():
        if name.startswith(f"{prefix}."):
            return replacement + name[len(prefix) :]
    return None


def _inverse(table: Mapping[str, str]) -> dict[str, str]:
    return {value: key for key, value in table.items()}


def _rename(state: Mapping[str, Value], rename: Callable[[str], str | None], what: str) -> dict[str, Value]:
    renamed = {name: rename(name) for name in state}
    unknown = sorted(name for name, new in renamed.items() if new is None)
    if unknown:
        raise InputError(
            f"{what}: {len(unknown)} unknown keys, first {', '.join(unknown[:5])}",
            "the file has another layout; inspect it with sprl audit-ckpt",
        )
    return {new: state[name] for name, new in renamed.items() if new is not None}
