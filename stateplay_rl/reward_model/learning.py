"""The loss of one group, and a model made ready to learn from inputs of 50,000 tokens on a 48 GB card.

Cross-entropy over the answer's tokens only, the end of the turn included; a group counts as one example, however
many digits its answer has. Shapes: L tokens, S answer tokens, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from stateplay_rl.reward_model.language import answer_logits, embed, plain_model
from stateplay_rl.reward_model.pictures import Grid

Precision = Literal["float32", "bfloat16", "nf4"]
"""Of frozen weights and activations; `nf4` keeps the large frozen Linears in 4 bits."""
AttentionName = Literal["default", "cudnn"]

PIECE_TOKENS = 8192
"""Tokens that an MLP or a norm sees at a time: MLPs are three times as wide inside, norms compute in float32."""


@dataclass(frozen=True)
class GroupInput:
    """One training example.

    Args:
        ids: prompt and answer.
        answer_tokens: how many of them are the answer.
        features: [T, W] of every picture.
        grids: patches of every picture.
    """

    ids: tuple[int, ...]
    answer_tokens: int
    features: Sequence[Tensor]
    grids: Sequence[Grid]


def group_loss(model: Any, group: GroupInput) -> Tensor:
    """Mean cross-entropy of a group's answer tokens, float32 0-dim."""
    logits_SY = answer_logits(model, embed(model, group.ids, group.features, group.grids), group.answer_tokens)
    target_S = torch.tensor(group.ids[-group.answer_tokens :], device=logits_SY.device)
    return F.cross_entropy(logits_SY, target_S)


def half_precision(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Autocast for a bfloat16 (or 4-bit) base: adapters keep float32 weights, products run in bfloat16."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def attention_kernels(device: torch.device, name: AttentionName) -> AbstractContextManager[Any]:
    """Which attention kernels may run: torch's choice, or cuDNN's first, which are faster on long inputs."""
    if device.type != "cuda" or name == "default":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    # Never the plain one: at 50,000 tokens its matrix of weights fits no card.
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    found: AbstractContextManager[Any] = sdpa_kernel(order, set_priority=True)
    return found


def prepare_for_training(model: Any, *, checkpointing: bool) -> None:
    """Dropout on in the language model; with `checkpointing` every decoder layer is recomputed when it is needed."""
    language = plain_model(model).model.language_model
    plain_model(model).eval()
    language.train()
    if checkpointing:
        language.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def prepare_for_scoring(model: Any) -> None:
    """Dropout off, nothing recomputed."""
    plain_model(model).eval()


def offloaded(device: torch.device, on: bool) -> AbstractContextManager[Any]:
    """What the forward pass keeps for the backward pass waits in pinned host memory: with checkpointing, the inputs
    of the layers (12.8 GiB of the 9B at 52,000 tokens). The backward pass runs outside of the context.
    """
    if device.type != "cuda" or not on:
        return nullcontext()
    found: AbstractContextManager[Any] = torch.autograd.graph.save_on_cpu(pin_memory=True)
    return found


def save_memory(model: Any, piece_tokens: int = PIECE_TOKENS) -> None:
    """Long inputs go through MLPs and norms in pieces; adapters make no float32 copies of their inputs.

    The same in training and in scoring, so that both compute the same bits.

    Args:
        model: the PEFT model; run it under `half_precision` when its base is bfloat16.
        piece_tokens: tokens of a piece, each recomputed on its own in the backward pass.
    """
    plain = plain_model(model)
    kinds = plain.config.text_config.layer_types
    for layer, kind in zip(plain.model.language_model.layers, kinds, strict=True):
        # Dropout of the adapters is drawn in MLPs: their random state is restored. Norms draw nothing.
        _in_pieces(layer.mlp, piece_tokens, dim=1, draws=True)
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            _in_pieces(norm, piece_tokens, dim=1, draws=False)
        if kind == "linear_attention":
            mixer = layer.linear_attn
            # Its rows are heads of tokens.
            _in_pieces(mixer.norm, piece_tokens * mixer.num_v_heads, dim=0, draws=False)
    for module in model.modules():
        # PEFT's own cast would take 2.5 GB for each input at real size; autocast converts the small weights instead.
        if _is_lora_layer(module):
            module.cast_input_dtype_enabled = False


def _is_lora_layer(module: Any) -> bool:
    from peft.tuners.lora import LoraLayer

    return isinstance(module, LoraLayer)


def _in_pieces(module: Any, rows: int, *, dim: int, draws: bool) -> None:
    if not isinstance(module.forward, _Pieces):
        module.forward = _Pieces(module.forward, rows, dim, draws)


@dataclass(frozen=True)
class _Pieces:
    """A module's forward over pieces of its inputs; row by row the same."""

    whole: Callable[..., Tensor]
    rows: int
    dim: int
    draws: bool

    def __call__(self, *inputs: Tensor) -> Tensor:
        if inputs[0].shape[self.dim] <= self.rows:
            return self.whole(*inputs)
        pieces = list(zip(*(torch.split(x, self.rows, dim=self.dim) for x in inputs), strict=True))
        if not torch.is_grad_enabled():
            return torch.cat([self.whole(*piece) for piece in pieces], dim=self.dim)
        parts: list[Tensor] = [
            checkpoint(self.whole, *piece, use_reentrant=False, preserve_rng_state=self.draws) for piece in pieces
        ]
        return torch.cat(parts, dim=self.dim)
