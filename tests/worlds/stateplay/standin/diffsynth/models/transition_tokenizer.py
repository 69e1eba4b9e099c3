"""A stage-1 tokenizer: codes of adjacent clean latent frames."""

import torch
from torch import nn


class LatentTransitionTokenizer(nn.Module):
    def __init__(self, channels=48, tokens=4):
        super().__init__()
        self.tokens = tokens
        self.pair_role = nn.Parameter(torch.randn(2, channels))
        self.to_code = nn.Linear(channels, tokens * 3)

    def forward(self, latents):
        pair = latents[:, :, :-1].mean((3, 4)) * self.pair_role[0][:, None]
        pair = pair + latents[:, :, 1:].mean((3, 4)) * self.pair_role[1][:, None]
        digits = (self.to_code(pair.transpose(1, 2)).sigmoid() * 7.999).long().unflatten(-1, (self.tokens, 3))
        return {"z_indices": (digits * torch.tensor([1, 8, 64], device=latents.device)).sum(-1)}
