"""Building blocks of the native transformer, composed from diffusers' Wan modules.

Shapes: B batch, f latent slots, S tokens per slot, N = f*S video tokens, D width, M state tokens per slot,
L text tokens, h heads, d head width.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from diffusers.models.transformers.transformer_wan import WanAttention, WanTransformerBlock
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from stateplay_rl.worlds.native.presets import LatentStateSizes, TransformerSizes

Rotary = tuple[Tensor, Tensor]


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


def rotate(x_BhNd: Tensor, rotary: Rotary) -> Tensor:
    """Rotary position embedding of interleaved pairs (even, odd), in float32.

    even' = even cos - odd sin, odd' = odd cos + even sin; the tables are [N, d]: every cosine twice, and every sine
    twice, the first time negative. Written as x cos + swapped(x) sin it is one pass over memory when compiled.
    """
    cos, sin = rotary
    x = x_BhNd.float()
    swapped = torch.unflatten(x, -1, (-1, 2)).flip(-1).flatten(-2)
    return (x * cos + swapped * sin).type_as(x_BhNd)


class RotarySelfAttention:
    """Attention processor (diffusers' extension point) with float32 rotary tables and plain SDPA.

    Args:
        backend: the kernel; None leaves the choice to torch.
        recompute: normalise and rotate again in the backward instead of keeping the results. When compiled this
            costs two passes over memory and saves two of about eighteen tensors of a block.
    """

    def __init__(self, backend: SDPBackend | None = None, recompute: bool = False) -> None:
        self.backend = backend
        self.recompute = recompute

    def __call__(self, attn: WanAttention, x_BND: Tensor, rotary: Rotary) -> Tensor:
        """Self-attention of all video tokens, [B, N, D]."""
        value = attn.to_v(x_BND)

        def query(x_BND: Tensor) -> Tensor:
            return rotate(split_heads(attn.norm_q(x_BND).type_as(value), attn.heads), rotary)

        def key(x_BND: Tensor) -> Tensor:
            return rotate(split_heads(attn.norm_k(x_BND).type_as(value), attn.heads), rotary)

        q_BhNd, k_BhNd = self.light(query, attn.to_q(x_BND)), self.light(key, attn.to_k(x_BND))
        return attn.to_out[0](attend_by(self.backend, q_BhNd, k_BhNd, split_heads(value, attn.heads)))  # type: ignore[no-any-return]

    def light(self, function: Callable[[Tensor], Tensor], x_BND: Tensor) -> Tensor:
        """A cheap function of one tensor, recomputed in the backward where that is wanted."""
        if self.recompute and torch.is_grad_enabled():
            found: Tensor = checkpoint(function, x_BND, use_reentrant=False, preserve_rng_state=False)
            return found
        return function(x_BND)


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
    """`latent_state_attention`: video tokens read state tokens, times a scalar gate that starts at 0.

    The gate has shape [1], not [], because sharded training does not take 0-dimensional parameters.
    """

    def __init__(self, dim: int, sizes: LatentStateSizes, eps: float) -> None:
        super().__init__(dim, dim, sizes.coupling_width, sizes.coupling_heads)
        self.gate = nn.Parameter(torch.zeros(1))
        self.eps = eps

    def forward(
        self, x_BND: Tensor, context_BKD: Tensor, visible_NK: Tensor | None = None, slots: int | None = None
    ) -> Tensor:
        """The gated update of the hidden state, float32 [B, N, D]."""
        # The known key names hold no norm of their own, so this one has no parameters.
        queries_BND = F.layer_norm(x_BND.float(), x_BND.shape[-1:], eps=self.eps).type_as(x_BND)
        update_BND = super().forward(queries_BND, context_BKD.type_as(x_BND), visible_NK, slots)
        return update_BND.float() * self.gate.float()


class LatentStateBlock(WanTransformerBlock):  # type: ignore[misc]
    """A Wan block with the action input before it and the state coupling between text attention and FFN.

    Modulation comes per latent slot instead of per token, so nothing of size [N, 6, D] is ever built.
    """

    def __init__(self, sizes: TransformerSizes, latent_state: LatentStateSizes | None) -> None:
        super().__init__(sizes.dim, sizes.ffn_dim, sizes.heads, cross_attn_norm=True, eps=sizes.eps)
        self.attn1.set_processor(RotarySelfAttention())
        self.latent_state_attention: CouplingAttention | None = None
        if latent_state is not None:
            self.latent_state_attention = CouplingAttention(sizes.dim, latent_state, sizes.eps)

    def use_attention(self, backend: SDPBackend | None) -> None:
        """Kernel of self-attention and text attention; None leaves the choice to torch.

        With a kernel named, the attentions with few keys go slot by slot when gradients flow.
        """
        self.attn1.processor.backend = backend

    def prepare_to_compile(self) -> None:
        """What only pays in a compiled block."""
        self.attn1.processor.recompute = True

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
        rotary: Rotary,
        states_BKD: Tensor | None,
        visible_NK: Tensor | None,
    ) -> Tensor:
        """Hidden state after the block, [B, f, S, D]."""
        if action_BfD is not None:
            hidden_BfSD = hidden_BfSD + action_BfD.unsqueeze(2).type_as(hidden_BfSD)
        dtype, slots = hidden_BfSD.dtype, hidden_BfSD.shape[1]
        table = self.scale_shift_table.float() + modulation_Bf6D.float()
        shift1, scale1, gate1, shift2, scale2, gate2 = table.unsqueeze(3).unbind(2)  # each [B, f, 1, D]

        x = (self.norm1(hidden_BfSD.float()) * (1 + scale1) + shift1).to(dtype).flatten(1, 2)
        x = self.attn1.processor(self.attn1, x, rotary).unflatten(1, (slots, -1))
        hidden_BfSD = (hidden_BfSD.float() + x.float() * gate1).to(dtype)

        x = self.norm2(hidden_BfSD.float()).to(dtype).flatten(1, 2)
        way = self.attn1.processor
        query_BhNd = way.light(
            lambda x: split_heads(self.attn2.norm_q(x).type_as(text_value_BhLd), self.attn2.heads), self.attn2.to_q(x)
        )
        apart = slots if way.backend is not None and torch.is_grad_enabled() else None
        if apart is None:
            x = attend_by(way.backend, query_BhNd, text_key_BhLd, text_value_BhLd)
        else:
            x = attend_slot_by_slot(SDPBackend.FLASH_ATTENTION, query_BhNd, text_key_BhLd, text_value_BhLd, apart)
        hidden_BfSD = hidden_BfSD + self.attn2.to_out[0](x).unflatten(1, (slots, -1))

        if self.latent_state_attention is not None:
            update_BND = self.latent_state_attention(hidden_BfSD.flatten(1, 2), states_BKD, visible_NK, apart)
            hidden_BfSD = (hidden_BfSD.float() + update_BND.unflatten(1, (slots, -1))).to(dtype)

        x = (self.norm3(hidden_BfSD.float()) * (1 + scale2) + shift2).to(dtype)
        return (hidden_BfSD.float() + self.ffn(x).float() * gate2).to(dtype)  # type: ignore[no-any-return]
