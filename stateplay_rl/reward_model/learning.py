"""The loss of one group, and a model made ready to learn from inputs of 50,000 tokens on a 48 GB card.

Cross-entropy over the answer's tokens only, the end of the turn included; a group counts as one example, however
many digits its answer has. Shapes: L tokens, S answer tokens, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stateplay_rl.reward_model.fused import FusedGatedNorm, FusedMlp, FusedNorm, install_convolution
from stateplay_rl.reward_model.language import answer_logits, embed, plain_model
from stateplay_rl.reward_model.pictures import Grid
from stateplay_rl.reward_model.recomputing import InPieces

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


def grow_in_pieces(device: torch.device) -> None:
    """Let torch's memory on a GPU grow in place: a group's large and few tensors leave holes that nothing fits into."""
    if device.type == "cuda":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")


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


def save_memory(model: Any, piece_tokens: int = PIECE_TOKENS, *, fused: bool = False) -> None:
    """Long inputs go through MLPs and norms in pieces; adapters make no float32 copies of their inputs.

    The same in training and in scoring, so that both compute the same bits.

    Args:
        model: the PEFT model; run it under `half_precision` when its base is bfloat16.
        piece_tokens: tokens of a piece, each recomputed on its own in the backward pass.
        fused: norms, gates and convolutions of DeltaNet layers run as Triton kernels; norms need no pieces then.
    """
    plain = plain_model(model)
    install_convolution(fused)
    kinds = plain.config.text_config.layer_types
    for layer, kind in zip(plain.model.language_model.layers, kinds, strict=True):
        mlp = FusedMlp(layer.mlp) if fused else _own(layer.mlp)
        layer.mlp.forward = InPieces(mlp, list(layer.mlp.parameters()), piece_tokens, dim=1)
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.forward = FusedNorm(norm) if fused else InPieces(_own(norm), (), piece_tokens, dim=1)
        if kind == "full_attention":
            for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
                norm.forward = FusedNorm(norm) if fused else _own(norm)
        else:
            gated, heads = layer.linear_attn.norm, layer.linear_attn.num_v_heads
            # Its rows are heads of tokens.
            gated.forward = FusedGatedNorm(gated) if fused else InPieces(_own(gated), (), piece_tokens * heads, dim=0)
    for module in model.modules():
        if _is_lora_layer(module) and not isinstance(module.forward, _AddedInPlace):
            module.forward = _AddedInPlace(module, module.forward)


def _is_lora_layer(module: Any) -> bool:
    from peft.tuners.lora import LoraLayer

    return isinstance(module, LoraLayer)


@dataclass(frozen=True)
class _AddedInPlace:
    """Forward of an adapted Linear: the adapter's share is added into the base's output.

    PEFT's own makes three more tensors as large as the output (1.3 GB each in an MLP at real size), and casts the input
    to float32; here autocast converts the small weights instead.
    """

    module: Any
    whole: Callable[..., Tensor]
    _cast: dict[torch.dtype, tuple[tuple[int, int], Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        module = self.module
        if module.disable_adapters or module.merged:
            return self.whole(x)
        (name,) = module.active_adapters
        flat = x.flatten(0, -2)
        out: Tensor = module.base_layer(flat)
        down, up = self._weights(name, out.dtype)
        low = F.linear(module.lora_dropout[name](flat), down)
        # Autocast does not reach operations in place.
        out.addmm_(low.to(out.dtype), up, alpha=module.scaling[name])
        return out.reshape(*x.shape[:-1], out.shape[-1])

    def _weights(self, name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A, and B transposed, in the dtype of the product.

        Without gradient the casts are kept: when a single token is read they cost more than the products.
        """
        down, up = self.module.lora_A[name].weight, self.module.lora_B[name].weight
        if torch.is_grad_enabled():
            return down, up.mT.to(dtype)
        versions = (down._version, up._version)
        if dtype not in self._cast or self._cast[dtype][0] != versions:
            self._cast[dtype] = (versions, down.to(dtype), up.mT.to(dtype))
        return self._cast[dtype][1:]


def _own(module: nn.Module) -> Any:
    """The forward of a module's class, whatever replaced it on the instance."""
    return type(module).forward.__get__(module)
