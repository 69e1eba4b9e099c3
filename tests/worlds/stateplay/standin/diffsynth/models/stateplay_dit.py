"""A video transformer with per-block actions and an implicit latent state, in plain loops."""

import torch
from torch import nn

from .latent_state import PREDICTOR, LatentStateAttention, LatentStateRollout, Predictor


def sinusoid(width, position):
    inverse = 10000 ** (-torch.arange(width // 2, dtype=torch.float64) / (width // 2))
    angle = position.double()[:, None] * inverse[None].to(position.device)
    return torch.cat([angle.cos(), angle.sin()], dim=1).to(position.dtype)


def axis_angles(width, count):
    inverse = 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(count, dtype=torch.float64)[:, None] * inverse[None]


def turn(x, angles):
    """Rotate interleaved pairs of x [B, N, heads, d] by angles [N, d/2], as complex numbers."""
    pairs = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2))
    rotated = pairs * torch.polar(torch.ones_like(angles), angles)[None, :, None]
    return torch.view_as_real(rotated).flatten(-2).to(x.dtype)


class RootNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        wide = x.float()
        return (wide * (wide.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, dim, num_heads, eps):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = RootNorm(dim, eps), RootNorm(dim, eps)

    def forward(self, x, context=None, angles=None):
        source = x if context is None else context
        q, k, v = self.norm_q(self.q(x)), self.norm_k(self.k(source)), self.v(source)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)) for t in (q, k, v))
        if angles is not None:
            q, k = turn(q, angles), turn(k, angles)
        weights = torch.einsum("bnhd,bmhd->bhnm", q, k) / q.shape[-1] ** 0.5
        return self.o(torch.einsum("bhnm,bmhd->bnhd", weights.softmax(-1), v).flatten(2))


class Block(nn.Module):
    def __init__(self, dim, num_heads, ffn_dim, eps, width):
        super().__init__()
        self.self_attn, self.cross_attn = Attention(dim, num_heads, eps), Attention(dim, num_heads, eps)
        self.norm1 = nn.LayerNorm(dim, eps=eps, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(dim, eps=eps, elementwise_affine=False)
        self.norm3 = nn.LayerNorm(dim, eps=eps)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn_dim), nn.GELU(approximate="tanh"), nn.Linear(ffn_dim, dim))
        self.modulation = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)
        self.latent_state_attention = LatentStateAttention(dim, width)

    def forward(self, x, context, t_mod, angles, state, tokens_per_slot, states_per_slot):
        mod = (self.modulation.to(t_mod.dtype)[:, None] + t_mod).unbind(2)
        x = x + mod[2] * self.self_attn(self.norm1(x) * (1 + mod[1]) + mod[0], angles=angles)
        x = x + self.cross_attn(self.norm3(x), context)
        update = self.latent_state_attention(x, state, tokens_per_slot, states_per_slot)
        x = x + self.latent_state_attention.gate * update
        return x + mod[5] * self.ffn(self.norm2(x) * (1 + mod[4]) + mod[3])


class Head(nn.Module):
    def __init__(self, dim, out_dim, patch, eps):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=eps, elementwise_affine=False)
        self.head = nn.Linear(dim, out_dim * patch[0] * patch[1] * patch[2])
        self.modulation = nn.Parameter(torch.randn(1, 2, dim) / dim**0.5)

    def forward(self, x, t):
        shift, scale = (self.modulation.to(t.dtype)[:, None] + t[:, :, None]).unbind(2)
        return self.head(self.norm(x) * (1 + scale) + shift)


class StatePlayModel(nn.Module):
    def __init__(
        self,
        num_buttons,
        dim,
        in_dim,
        ffn_dim,
        out_dim,
        text_dim,
        freq_dim,
        eps,
        patch_size,
        num_heads,
        num_layers,
        state_dim=16,
        state_tokens=4,
        coupling_dim=16,
        codes=512,
        max_slots=64,
        seperated_timestep=True,
        **unused,
    ):
        super().__init__()
        self.dim, self.freq_dim, self.patch_size, self.out_dim = dim, freq_dim, tuple(patch_size), out_dim
        self.patch_embedding = nn.Conv3d(in_dim, dim, self.patch_size, self.patch_size)
        self.text_embedding = nn.Sequential(nn.Linear(text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim))
        self.time_embedding = nn.Sequential(nn.Linear(freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList([Block(dim, num_heads, ffn_dim, eps, coupling_dim) for _ in range(num_layers)])
        self.head = Head(dim, out_dim, self.patch_size, eps)
        self.action_embedders = nn.ModuleList([nn.Linear(num_buttons, dim, bias=False) for _ in range(num_layers)])
        self.latent_state_rollout = LatentStateRollout(dim, state_dim, state_tokens, num_buttons, max_slots)
        setattr(self, PREDICTOR, Predictor(state_dim, num_buttons, codes))
        width = dim // num_heads
        # Plain tensors, as in the public code: no part of the state dict, on the CPU until they are used.
        self.angles = [axis_angles(w, 128) for w in (width - 2 * (width // 3), width // 3, width // 3)]
        self.register_buffer("code_levels", torch.tensor([8, 8, 8]))
        self.calls = 0
