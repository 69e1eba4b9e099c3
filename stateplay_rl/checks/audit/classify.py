"""Names of a checkpoint: wrappers off (`worlds/native/prefixes.py`), then what model the rest belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stateplay_rl.checks.audit.headers import TensorFacts
from stateplay_rl.worlds.native.prefixes import bare_names

IMPLICIT = "implicit_latent"
EXPLICIT = "explicit_state"
MIXED = "mixed"
PLAIN_WAN = "plain_wan"
LORA = "lora"
TOKENIZER = "transition_tokenizer"
VAE = "vae"
TEXT_ENCODER = "text_encoder"
UNKNOWN = "unknown"

_LORA = re.compile(r"\.(lora_[AB]|lora_(down|up))(\.[\w-]+)?\.weight$|\.lora_(alpha|magnitude_vector)\b")
_IMPLICIT = re.compile(
    r"^(latent_state_rollout|latent_state_predictor|transition_predictor)\.|\.latent_state_attention\."
)
_EXPLICIT = re.compile(
    r"^state_(encoder|decoder)\."
    r"|^blocks\.\d+\.(state_self_attn|state_ffn|state_to_video_attn|video_to_state_attn|norm_state_to_video|"
    r"norm_video_to_state)"
)
_WAN = re.compile(
    r"^blocks\.\d+\.(self_attn|cross_attn|ffn|attn1|attn2)\.|^patch_embedding\.|^head\.head\.|^proj_out\.|"
    r"^(time|text)_embedding\.|^condition_embedder\.|^action_embedders\."
)
_TOKENIZER = re.compile(r"(^|\.)(quantizer|pair_role|pair_embedding|to_code|from_code)(\.|$)")
_VAE = re.compile(r"^(encoder|decoder)\.(conv1|conv_in|downsamples|upsamples|middle|mid_block|down_blocks|up_blocks)")
_TEXT = re.compile(r"^(token_embedding|shared|encoder\.embed_tokens)\.weight$|^encoder\.block\.\d+\.layer\.")

SENTENCES = {
    IMPLICIT: "an implicit-latent-state world model",
    EXPLICIT: "an explicit-state model (state encoder and state attention): this pipeline never takes it",
    MIXED: "latent and explicit state in one file: forbidden together",
    PLAIN_WAN: "a Wan video transformer without latent-state modules",
    LORA: "LoRA factors only: they need the weights that they were trained on",
    TOKENIZER: "a transition tokenizer, not a world checkpoint: give it as --tokenizer",
    VAE: "a video VAE, not a world checkpoint: give it as --base",
    TEXT_ENCODER: "a text encoder, not a world checkpoint: give it as --base",
    UNKNOWN: "no known model: none of its names belongs to a Wan transformer or to latent-state modules",
}


@dataclass(frozen=True)
class StrippedNames:
    """Tensors under their bare names, with what was taken off.

    Args:
        tensors: facts whose `name` is the bare name; `original` gives back the name in the file.
        original: bare name -> name in the file.
        removed: removed text (`module.dit.`, `*._orig_mod.`) -> number of names.
        collisions: bare names that two tensors ended up with.
    """

    tensors: tuple[TensorFacts, ...]
    original: dict[str, str]
    removed: dict[str, int]
    collisions: tuple[str, ...]


def strip_prefixes(tensors: Iterable[TensorFacts]) -> StrippedNames:
    """Bare names of all tensors, with the map kept.

    Args:
        tensors: facts under the names of their files.
    """
    by_name: dict[str, TensorFacts] = {}
    names: list[str] = []
    for tensor in tensors:
        names.append(tensor.name)
        by_name.setdefault(tensor.name, tensor)
    bare = bare_names(names)
    stripped = tuple(replace(by_name[name], name=short) for short, name in bare.original.items())
    return StrippedNames(stripped, bare.original, bare.removed, bare.collisions)


def is_implicit(name: str) -> bool:
    """Whether a bare name belongs to the implicit latent state."""
    return _IMPLICIT.search(name) is not None


def is_lora(name: str) -> bool:
    """Whether a tensor is a LoRA factor."""
    return _LORA.search(name) is not None


def classify(names: Sequence[str]) -> str:
    """The class of model that a set of bare names belongs to.

    Args:
        names: bare names of one checkpoint.

    Returns:
        One of the constants of this module. A single explicit-state name beside latent-state names makes the
        file `mixed`; any explicit-state name otherwise makes it `explicit_state`.
    """
    weights = [name for name in names if not is_lora(name)]
    if names and not weights:
        return LORA
    implicit = any(_IMPLICIT.search(name) for name in weights)
    explicit = any(_EXPLICIT.search(name) for name in weights)
    if implicit and explicit:
        return MIXED
    if explicit:
        return EXPLICIT
    if implicit:
        return IMPLICIT
    # The tokenizer and the text encoder hold names that a Wan transformer has too: they come first.
    for pattern, kind in ((_TOKENIZER, TOKENIZER), (_TEXT, TEXT_ENCODER), (_VAE, VAE), (_WAN, PLAIN_WAN)):
        if any(pattern.search(name) for name in weights):
            return kind
    return UNKNOWN
