"""Building blocks of the native transformer, composed from diffusers' Wan modules.

Shapes: B batch, f latent slots, S tokens per slot, N = f*S video tokens, D width, M state tokens per slot,
L text tokens, h heads, d head width.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from diffusers.models.transformers.transformer_wan import WanAttention, WanTransformerBlock
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from stateplay_rl.worlds.native.block_formulas import Modulation, gelu
from stateplay_rl.worlds.native.block_passes import add, add_and_norm, head_rows
from stateplay_rl.worlds.native.block_products import three_products
from stateplay_rl.worlds.native.presets import LatentStateSizes, TransformerSizes
from stateplay_rl.worlds.native.text_attention import text_attention

SCALE_1, GATE_1, SCALE_2, GATE_2 = 1, 2, 4, 5
"""Rows of a block's modulation; a shift stands before its scale."""

Rotary = tuple[Tensor, Tensor]
Light = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
"""How a cheap function of one tensor is called: `kept` or `computed_again`."""


def split_heads(x_BND: Tensor, heads: int) -> Tensor:
    """[B, N, h*d] -> [B, h, N, d]."""
    return torch.unflatten(x_BND, -1, (heads, -1)).transpose(1, 2)


def attend(q_BhNd: Tensor, k_BhKd: Tensor, v_BhKd: Tensor, visible_NK: Tensor | None = None) -> Tensor:
    """Scaled dot-product attention, [B, N, h*d]; `visible_NK` is True where a query may look."""
    v_BhKd = v_BhKd.type_as(q_BhNd)
    out_BhNd = F.scaled_dot_product_attention(q_BhNd, k_BhKd.type_as(q_BhNd), v_BhKd, attn_mask=visible_NK)
    return out_BhNd.transpose(1, 2).flatten(2)


def attend_by(backend: SDPBackend | None, q_BhNd: Tensor, k_BhKd: Tensor, v_BhKd: Tensor) -> Tensor:
    """`attend` by one named kernel and no other; None leaves the choice to torch.

    Raises:
        RuntimeError: the kernel does not take these tensors (device, dtype or head width).
    """
    if backend is None:
        return attend(q_BhNd, k_BhKd, v_BhKd)
    with sdpa_kernel(backend):
        return attend(q_BhNd, k_BhKd, v_BhKd)


def attend_slot_by_slot(
    backend: SDPBackend | None,
    q_BhNd: Tensor,
    k_BhKd: Tensor,
    v_BhKd: Tensor,
    slots: int,
    visible_NK: Tensor | None = None,
) -> Tensor:
    """`attend` with the slots of a video as a batch; every query of a slot sees the same keys.

    The fused kernels' backward shares the keys among their thread blocks: a few hundred keys of one video occupy a
    part of a GPU, and each block goes through all queries. Slot by slot there are as many blocks more.
    """

    def of_slots(x: Tensor) -> Tensor:
        return x.unsqueeze(1).expand(-1, slots, *x.shape[1:]).flatten(0, 1)

    batch, queries = q_BhNd.shape[0], q_BhNd.shape[2]
    q_bhSd = torch.unflatten(q_BhNd, 2, (slots, -1)).transpose(1, 2).flatten(0, 1)
    mask = None
    if visible_NK is not None:
        of_slot_fK = visible_NK[:: queries // slots]
        mask = of_slot_fK.expand(batch, *of_slot_fK.shape).flatten(0, 1)[:, None, None]
    choice = nullcontext() if backend is None else sdpa_kernel(backend)
    with choice:
        out_bSD = attend(q_bhSd, of_slots(k_BhKd), of_slots(v_BhKd), mask)
    return torch.unflatten(out_bSD, 0, (batch, slots)).flatten(1, 2)


def kept(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of one tensor, whose parts are kept for the backward."""
    return function(x)


def computed_again(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of one tensor, computed again in the backward."""
    found: Tensor = checkpoint(function, x, use_reentrant=False, preserve_rng_state=False)
    return found


_ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default
    for name in ("cudnn_attention", "flash_attention", "efficient_attention", "flash_attention_for_cpu")
)


def _keep_attention(
    _: SelectiveCheckpointContext, operation: object, *args: object, **kwargs: object
) -> CheckpointPolicy:
    """A recomputed block keeps attention's results: a third of its forward, one of about nineteen tensors."""
    found = operation in _ATTENTION
    return CheckpointPolicy.MUST_SAVE if found else CheckpointPolicy.PREFER_RECOMPUTE


class RotarySelfAttention:
    """Attention processor (diffusers' extension point) with float32 rotary tables and plain SDPA.

    Args:
        backend: the kernel; None leaves the choice to torch.
    """

    def __init__(self, backend: SDPBackend | None = None) -> None:
        self.backend = backend

    def __call__(self, attn: WanAttention, x_BND: Tensor, rotary: Rotary, light: Light, kernels: bool) -> Tensor:
        """Self-attention of all video tokens, [B, N, D]; `light` calls what is cheap to compute again."""
        linears = (attn.to_v, attn.to_q, attn.to_k)
        value, query, key = three_products(x_BND, *linears) if kernels else (linear(x_BND) for linear in linears)

        def rows(norm: Any, x_BND: Tensor) -> Tensor:
            return head_rows(x_BND, norm.weight, norm.eps, attn.heads, rotary, kernels=kernels)

        # Of queries and keys one fits: together they would take 3.6 GiB of a card of 48.
        q_BhNd, k_BhNd = light(partial(rows, attn.norm_q), query), rows(attn.norm_k, key)
        return attn.to_out[0](attend_by(self.backend, q_BhNd, k_BhNd, split_heads(value, attn.heads)))  # type: ignore[no-any-return]


class MultiHeadAttention(nn.Module):
    """Attention with plain Linears named `q`, `k`, `v`, `out`.

    Args:
        dim: width of queries and output.
        context_dim: width of keys and values before projection.
        width: inner width, split over `heads`.
    """

    def __init__(self, dim: int, context_dim: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, width)
        self.k = nn.Linear(context_dim, width)
        self.v = nn.Linear(context_dim, width)
        self.out = nn.Linear(width, dim)

    def forward(
        self, x_BND: Tensor, context_BKD: Tensor, visible_NK: Tensor | None = None, slots: int | None = None
    ) -> Tensor:
        """Read `context_BKD` from every query, [B, N, D]; with `slots`, `attend_slot_by_slot`."""
        query, key, value = (
            split_heads(linear(x), self.heads)
            for linear, x in ((self.q, x_BND), (self.k, context_BKD), (self.v, context_BKD))
        )
        if slots is not None:
            return self.out(attend_slot_by_slot(None, query, key, value, slots, visible_NK))  # type: ignore[no-any-return]
        return self.out(attend(query, key, value, visible_NK))  # type: ignore[no-any-return]


class CouplingAttention(MultiHeadAttention):
    """`latent_state_attention`: video tokens read state tokens; the block multiplies by a gate that starts at 0.

    The gate has shape [1], not [], because sharded training does not take 0-dimensional parameters.
    """

    def __init__(self, dim: int, sizes: LatentStateSizes) -> None:
        super().__init__(dim, dim, sizes.coupling_width, sizes.coupling_heads)
        self.gate = nn.Parameter(torch.zeros(1))


class LatentStateBlock(WanTransformerBlock):  # type: ignore[misc]
    """A Wan block with the action input before it and the state coupling between text attention and FFN.

    Modulation comes per latent slot instead of per token, so nothing of size [N, 6, D] is ever built.
    """

    def __init__(self, sizes: TransformerSizes, latent_state: LatentStateSizes | None) -> None:
        super().__init__(sizes.dim, sizes.ffn_dim, sizes.heads, cross_attn_norm=True, eps=sizes.eps)
        self.attn1.set_processor(RotarySelfAttention())
        self.light: Light = kept
        self.kernels = False
        """Whether passes over memory and text attention are Triton kernels; not while the block's weights train."""
        self.latent_state_attention: CouplingAttention | None = None
        if latent_state is not None:
            self.latent_state_attention = CouplingAttention(sizes.dim, latent_state)

    def use_attention(self, backend: SDPBackend | None) -> None:
        """Kernel of self-attention and text attention; None leaves the choice to torch.

        With a kernel named, the attentions with few keys go slot by slot when gradients flow.
        """
        self.attn1.processor.backend = backend

    def prepare_to_compile(self) -> None:
        """What only pays in a compiled block: queries are normalised and rotated again in the backward.

        This costs two passes over memory and saves two of about nineteen tensors of a block.
        """
        self.light = computed_again

    def text_keys_values(self, text_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Text keys and values [B, h, L, d]; they depend on neither sigma nor latents."""
        value = self.attn2.to_v(text_BLD)
        key = self.attn2.norm_k(self.attn2.to_k(text_BLD)).type_as(value)
        return split_heads(key, self.attn2.heads), split_heads(value, self.attn2.heads)

    def forward(
        self,
        hidden_BfSD: Tensor,
        action_BfD: Tensor | None,
        modulation_Bf6D: Tensor,
        text_key_BhLd: Tensor,
        text_value_BhLd: Tensor,
        text_lengths_B: Tensor,
        rotary: Rotary,
        states_BKD: Tensor | None,
        visible_NK: Tensor | None,
        recomputed: bool = False,
    ) -> Tensor:
        """Hidden state after the block, [B, f, S, D].

        Args:
            text_lengths_B: int32, tokens of the prompts; the keys and values behind are all equal.
            recomputed: keep inputs and attention's results alone, and compute the rest again in the backward.
        """
        inputs = (
            hidden_BfSD,
            action_BfD,
            modulation_Bf6D,
            text_key_BhLd,
            text_value_BhLd,
            text_lengths_B,
            rotary,
            states_BKD,
            visible_NK,
        )
        if not recomputed:
            return self._compute(*inputs, self.light if torch.is_grad_enabled() else kept)
        contexts = partial(create_selective_checkpoint_contexts, _keep_attention)
        found: Tensor = checkpoint(
            self._compute, *inputs, kept, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
        )
        return found

    def _compute(
        self,
        hidden_BfSD: Tensor,
        action_BfD: Tensor | None,
        modulation_Bf6D: Tensor,
        text_key_BhLd: Tensor,
        text_value_BhLd: Tensor,
        text_lengths_B: Tensor,
        rotary: Rotary,
        states_BKD: Tensor | None,
        visible_NK: Tensor | None,
        light: Light,
    ) -> Tensor:
        slots, backend = hidden_BfSD.shape[1], self.attn1.processor.backend
        kernels = self.kernels and not self.scale_shift_table.requires_grad
        modulation = Modulation.of(self.scale_shift_table, modulation_Bf6D, kernels)
        action_BfD = None if action_BfD is None else action_BfD.type_as(hidden_BfSD)
        hidden_BfSD, x = add_and_norm(hidden_BfSD, action_BfD, modulation, self.norm1.eps, scale=SCALE_1)
        x = self.attn1.processor(self.attn1, x.flatten(1, 2), rotary, light, kernels).unflatten(1, (slots, -1))

        norm, attn = self.norm2, self.attn2
        hidden_BfSD, x = add_and_norm(
            hidden_BfSD, x, modulation, norm.eps, gate=GATE_1, weight_D=norm.weight, bias_D=norm.bias
        )
        query_BhNd = light(
            lambda x: head_rows(x, attn.norm_q.weight, attn.norm_q.eps, attn.heads, kernels=kernels),
            attn.to_q(x.flatten(1, 2)),
        )
        apart = slots if backend is not None and torch.is_grad_enabled() else None
        if kernels:
            x = text_attention(query_BhNd, text_key_BhLd.type_as(query_BhNd), text_value_BhLd, text_lengths_B)
        elif apart is None:
            x = attend_by(backend, query_BhNd, text_key_BhLd, text_value_BhLd)
        else:
            x = attend_slot_by_slot(SDPBackend.FLASH_ATTENTION, query_BhNd, text_key_BhLd, text_value_BhLd, apart)
        x = attn.to_out[0](x).unflatten(1, (slots, -1))

        coupling, gate_1 = self.latent_state_attention, None
        if coupling is not None:
            # The known key names hold no norm of the coupling's own, so this one has no parameters.
            hidden_BfSD, x = add_and_norm(hidden_BfSD, x, modulation, self.norm3.eps)
            x = coupling(x.flatten(1, 2), states_BKD, visible_NK, apart).unflatten(1, (slots, -1))
            gate_1 = coupling.gate
        hidden_BfSD, x = add_and_norm(hidden_BfSD, x, modulation, self.norm3.eps, gate_1=gate_1, scale=SCALE_2)
        if kernels:
            widen, _, narrow = self.ffn.net
            x = narrow(gelu(widen.proj(x)))
        else:
            x = self.ffn(x)
        return add(hidden_BfSD, x, modulation, gate=GATE_2)
