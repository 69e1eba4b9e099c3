"""The frozen transition tokenizer: what changed between adjacent clean latent frames, as M codes.

Shapes: B batch, C latent channels, f latent slots, H W latent grid, P = patches per frame, D feature width,
M codes per pair, Q quantised dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stateplay_rl.worlds.native.blocks import MultiHeadAttention
from stateplay_rl.worlds.native.latent_state import mlp, sincos_grid
from stateplay_rl.worlds.native.presets import TokenizerSizes


class FiniteScalarQuantizer(nn.Module):
    """FSQ (arXiv 2309.15505, appendix A): bound each dimension, round, pass gradients straight through.

    Levels and mixed-radix basis are buffers in the state dict, so that a saved tokenizer says what its codes
    mean.
    """

    levels: Tensor
    basis: Tensor

    def __init__(self, levels: tuple[int, ...]) -> None:
        super().__init__()
        levels_Q, basis_Q = _levels_and_basis(levels)
        self.register_buffer("levels", levels_Q)
        self.register_buffer("basis", basis_Q)

    def fill_missing(self, levels: tuple[int, ...], device: torch.device) -> None:
        """Give buffers that no file held (still on the meta device) the stated levels."""
        if self.levels.is_meta:
            self.levels, self.basis = (value.to(device) for value in _levels_and_basis(levels))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Quantise [..., Q].

        Returns:
            values in [-1, 1] with straight-through gradient [..., Q], and int64 codes [...].
        """
        half = (self.levels - 1) * (1 + 1e-3) / 2
        offset = torch.where(self.levels % 2 == 0, 0.5, 0.0)
        bounded = torch.tanh(z + torch.atanh(offset / half)) * half - offset
        rounded = bounded + (bounded.round() - bounded).detach()
        half_width = self.levels // 2
        codes = ((rounded.detach() + half_width).long() * self.basis).sum(-1)
        return rounded / half_width, codes


def _levels_and_basis(levels: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Levels [Q] and the weights [Q] of their mixed-radix number, int64."""
    levels_Q = torch.tensor(levels, dtype=torch.int64)
    ones = torch.ones(1, dtype=torch.int64)
    return levels_Q, torch.cat((ones, levels_Q[:-1])).cumprod(0)


class TransitionTokenizer(nn.Module):
    """Adjacent clean latent frames -> M discrete codes; trained alone, then frozen.

    The target of training is the difference of the mean frame features of the pair, without gradient: the
    features are those of the encoder itself, and a gradient into the target would shrink them to nothing.
    Always computed in float32: codes are rounded values and must not depend on the compute dtype.
    """

    def __init__(self, sizes: TokenizerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        width, patch_height, patch_width = sizes.width, *sizes.patch
        self.patch_embedding = nn.Linear(sizes.in_channels * patch_height * patch_width, width)
        self.frame_mlp = mlp(width, sizes.mlp_ratio * width)
        self.pair_role = nn.Parameter(torch.zeros(2, width))
        self.queries = nn.Parameter(torch.zeros(sizes.state_tokens, width))
        self.attention = MultiHeadAttention(width, width, width, sizes.heads)
        self.norm = nn.LayerNorm(width)
        self.query_mlp = mlp(width, sizes.mlp_ratio * width)
        self.to_code = nn.Linear(width, len(sizes.fsq_levels))
        self.quantizer = FiniteScalarQuantizer(sizes.fsq_levels)
        self.from_code = nn.Linear(sizes.state_tokens * len(sizes.fsq_levels), width)
        self.decoder = mlp(width, sizes.mlp_ratio * width)

    def encode(self, latents_BCfHW: Tensor) -> Tensor:
        """Codes of adjacent clean normalised latents, int64 [B, f-1, M]; no gradient."""
        with torch.no_grad():
            _, codes_BfM, _ = self._quantise(latents_BCfHW)
        return codes_BfM

    def training_loss(self, latents_BCfHW: Tensor) -> tuple[Tensor, Tensor]:
        """SmoothL1 loss of the decoded feature difference (scalar), and the codes int64 [B, f-1, M]."""
        values_BfMQ, codes_BfM, features_BfPD = self._quantise(latents_BCfHW)
        with torch.autocast(latents_BCfHW.device.type, enabled=False):
            predicted_BfD = self.decoder(self.from_code(values_BfMQ.flatten(2)))
            mean_BfD = features_BfPD.mean(2)
            target_BfD = (mean_BfD[:, 1:] - mean_BfD[:, :-1]).detach()
            # Means over patches are small; at scale 1 SmoothL1 would be plain half squared error.
            return F.smooth_l1_loss(predicted_BfD, target_BfD, beta=0.1), codes_BfM

    def _quantise(self, latents_BCfHW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(latents_BCfHW.device.type, enabled=False):
            features_BfPD = self._features(latents_BCfHW.float())
            batch, slots = features_BfPD.shape[:2]
            pair = (features_BfPD[:, :-1] + self.pair_role[0], features_BfPD[:, 1:] + self.pair_role[1])
            tokens_GPD = torch.cat(pair, dim=2).flatten(0, 1)
            queries_GMD = self.queries.expand(len(tokens_GPD), -1, -1).contiguous()
            x_GMD = queries_GMD + self.attention(queries_GMD, tokens_GPD)
            x_GMD = x_GMD + self.query_mlp(self.norm(x_GMD))
            values_GMQ, codes_GM = self.quantizer(self.to_code(x_GMD))
            unflat = (batch, slots - 1)
            return values_GMQ.unflatten(0, unflat), codes_GM.unflatten(0, unflat), features_BfPD

    def _features(self, latents_BCfHW: Tensor) -> Tensor:
        """Frame features [B, f, P, D], normalised without parameters so that their scale is fixed."""
        patch_height, patch_width = self.sizes.patch
        x = torch.unflatten(torch.unflatten(latents_BCfHW, 4, (-1, patch_width)), 3, (-1, patch_height))
        _, _, _, height, _, width, _ = x.shape
        x_BfPD = self.patch_embedding(x.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(2, 3))
        x_BfPD = x_BfPD + sincos_grid(height, width, self.sizes.width, x_BfPD.device)
        x_BfPD = x_BfPD + self.frame_mlp(x_BfPD)
        return F.layer_norm(x_BfPD, x_BfPD.shape[-1:])
