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

MLP_TOKENS = 8192
"""Tokens that an MLP sees at a time: its inner width is three times the model's."""


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


def save_memory(model: Any, mlp_tokens: int = MLP_TOKENS) -> None:
    """Long inputs go through an MLP in pieces; adapters make no float32 copies of their inputs.

    The same in training and in scoring, so that both compute the same bits.

    Args:
        model: the PEFT model; run it under `half_precision` when its base is bfloat16.
        mlp_tokens: tokens of a piece, each recomputed on its own in the backward pass.
    """
    for layer in plain_model(model).model.language_model.layers:
        if not isinstance(layer.mlp.forward, _PiecewiseMlp):
            layer.mlp.forward = _PiecewiseMlp(layer.mlp.forward, mlp_tokens)
    for module in model.modules():
        # PEFT's own cast would take 2.5 GB for each input at real size; autocast converts the small weights instead.
        if _is_lora_layer(module):
            module.cast_input_dtype_enabled = False


def _is_lora_layer(module: Any) -> bool:
    from peft.tuners.lora import LoraLayer

    return isinstance(module, LoraLayer)


@dataclass(frozen=True)
class _PiecewiseMlp:
    """An MLP's forward over pieces of the sequence."""

    whole: Callable[[Tensor], Tensor]
    tokens: int

    def __call__(self, x_1LW: Tensor) -> Tensor:
        if x_1LW.shape[1] <= self.tokens:
            return self.whole(x_1LW)
        pieces = torch.split(x_1LW, self.tokens, dim=1)
        if not torch.is_grad_enabled():
            return torch.cat([self.whole(piece) for piece in pieces], dim=1)
        parts: list[Tensor] = [checkpoint(self.whole, piece, use_reentrant=False) for piece in pieces]
        return torch.cat(parts, dim=1)
