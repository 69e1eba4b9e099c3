"""Exact two-way maps between the training repository's key names and this package's module names.

The backbone's names are known from the training repository. The inner names of the latent modules are this
project's own (the real ones are not public): a world file may hold `translations`, pairs of (their prefix,
our prefix), that are applied first. A key that no rule matches is returned as unmatched, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from stateplay_rl.errors import InputError

Value = TypeVar("Value")

_ATTENTION = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0"}
_WB = ("weight", "bias")

# Training repository -> ours, without block index. Names of the latent modules are the same on both sides.
_ROOT_NAMES: dict[str, str] = {
    f"{theirs}.{leaf}": f"{ours}.{leaf}"
    for theirs, ours in (
        ("patch_embedding", "patch_embedding"),
        ("text_embedding.0", "condition_embedder.text_embedder.linear_1"),
        ("text_embedding.2", "condition_embedder.text_embedder.linear_2"),
        ("time_embedding.0", "condition_embedder.time_embedder.linear_1"),
        ("time_embedding.2", "condition_embedder.time_embedder.linear_2"),
        ("time_projection.1", "condition_embedder.time_proj"),
        ("head.head", "proj_out"),
    )
    for leaf in _WB
} | {"head.modulation": "scale_shift_table"}

_BLOCK_NAMES: dict[str, str] = {
    **{
        f"{theirs}.{short}.{leaf}": f"{ours}.{long}.{leaf}"
        for theirs, ours in (("self_attn", "attn1"), ("cross_attn", "attn2"))
        for short, long in _ATTENTION.items()
        for leaf in _WB
    },
    **{
        f"{theirs}.{norm}.weight": f"{ours}.{norm}.weight"
        for theirs, ours in (("self_attn", "attn1"), ("cross_attn", "attn2"))
        for norm in ("norm_q", "norm_k")
    },
    **{f"norm3.{leaf}": f"norm2.{leaf}" for leaf in _WB},
    **{f"ffn.0.{leaf}": f"ffn.net.0.proj.{leaf}" for leaf in _WB},
    **{f"ffn.2.{leaf}": f"ffn.net.2.{leaf}" for leaf in _WB},
    "modulation": "scale_shift_table",
    **{
        f"latent_state_attention.{part}.{leaf}": f"latent_state_attention.{part}.{leaf}"
        for part in ("q", "k", "v", "out")
        for leaf in _WB
    },
    "latent_state_attention.gate": "latent_state_attention.gate",
}

_ATTENTION_TAIL = r"attention\.(q|k|v|out)\.(weight|bias)"
_SAME_NAMES = re.compile(
    r"action_embedders\.\d+\.weight"
    r"|latent_state_rollout\.output_projection\.(weight|bias)"
    rf"|latent_state_rollout\.initializer\.({_ATTENTION_TAIL}|queries"
    r"|(project|norm_tokens|norm_mlp|mlp\.[02]|norm)\.(weight|bias))"
    r"|latent_state_rollout\.transition\.(action_embedding\.weight|(step_embedding|delta|norm)\.(weight|bias))"
    rf"|latent_state_rollout\.transition\.layers\.\d+\.({_ATTENTION_TAIL}|(norm1|norm2|mlp\.[02])\.(weight|bias))"
    r"|transition_predictor\.(action_embedding\.weight|(norm|hidden|head)\.(weight|bias))"
)
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
_ROOT_BACK = {ours: theirs for theirs, ours in _ROOT_NAMES.items()}
_BLOCK_BACK = {ours: theirs for theirs, ours in _BLOCK_NAMES.items()}

Translations = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TrainingLayout:
    """How a checkpoint spells what this package holds under its own names.

    Args:
        translations: (their prefix, our prefix) pairs for latent modules of other inner names.
        scalars: training names of one-element tensors that are stored with shape [] there and [1] here.
    """

    translations: Translations = ()
    scalars: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RenamedState(Generic[Value]):
    """A renamed state.

    Args:
        state: new name -> the very same value (tensor, shape, ...), in the order of the input.
        unmatched: input names that no rule covers; the caller must report them.
    """

    state: dict[str, Value]
    unmatched: tuple[str, ...]


def training_to_ours(name: str) -> str | None:
    """Our name of the training repository's `name`, or None."""
    return _rename(name, _ROOT_NAMES, _BLOCK_NAMES)


def ours_to_training(name: str) -> str | None:
    """The training repository's name of our `name`, or None."""
    return _rename(name, _ROOT_BACK, _BLOCK_BACK)


def any_to_ours(name: str, translations: Translations = ()) -> str | None:
    """Our name of a training name, or of a name that is ours already (a diffusers-layout file); else None."""
    translated = translate(name, translations)
    return training_to_ours(translated) or (translated if ours_to_training(translated) else None)


def from_training_names(state: Mapping[str, Value], translations: Translations = ()) -> RenamedState[Value]:
    """Rename a state (tensors, or shapes of a header) of the training repository; values are not touched.

    Args:
        state: training names without wrappers' prefixes.
        translations: (their prefix, our prefix) pairs for latent modules of other inner names.

    Raises:
        InputError: two input names end on one name.
    """
    return _rename_all(state, lambda name: training_to_ours(translate(name, translations)))


def to_training_names(state: Mapping[str, Value], translations: Translations = ()) -> RenamedState[Value]:
    """The inverse of `from_training_names`, with the same `translations`.

    LoRA-wrapped weights have no training name: merge them first (`coupling_lora.merged_state`).

    Raises:
        InputError: two input names end on one name.
    """
    back = tuple((ours, theirs) for theirs, ours in translations)

    def rename(name: str) -> str | None:
        theirs = ours_to_training(name)
        return None if theirs is None else translate(theirs, back)

    return _rename_all(state, rename)


def _rename(name: str, roots: Mapping[str, str], blocks: Mapping[str, str]) -> str | None:
    if name in roots:
        return roots[name]
    if _SAME_NAMES.fullmatch(name):
        return name
    if (match := _BLOCK.fullmatch(name)) and match[2] in blocks:
        return f"blocks.{match[1]}.{blocks[match[2]]}"
    return None


def translate(name: str, translations: Translations) -> str:
    """Replace the longest prefix that matches whole name parts; block indices are written `*`."""
    for source, target in sorted(translations, key=lambda pair: -len(pair[0])):
        pattern = re.escape(source).replace(r"\*", r"(\d+)") + r"(\.|$)"
        if match := re.match(pattern, name):
            for index in match.groups()[:-1]:
                target = target.replace("*", index, 1)
            return target + match.groups()[-1] + name[match.end() :]
    return name


def _rename_all(state: Mapping[str, Value], rename: Callable[[str], str | None]) -> RenamedState[Value]:
    renamed: dict[str, Value] = {}
    unmatched: list[str] = []
    for name, value in state.items():
        new_name = rename(name)
        if new_name is None:
            unmatched.append(name)
        elif new_name in renamed:
            raise InputError(f"two keys map to {new_name}, the second one is {name}", "fix the key map")
        else:
            renamed[new_name] = value
    return RenamedState(renamed, tuple(unmatched))
