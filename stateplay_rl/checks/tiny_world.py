"""A transformer with latent state of a few thousand parameters: the real classes, sizes for a self-check.

Shapes: B batch, C latent channels, f latent slots, H W latent size, K buttons, L text tokens, D text width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stateplay_rl.nft.randomness import DrawKey, normal
from stateplay_rl.worlds.native.initialise import initialise
from stateplay_rl.worlds.native.presets import LatentStateSizes, TransformerSizes
from stateplay_rl.worlds.native.transformer import LatentStateTransformer

TRANSFORMER = TransformerSizes(
    in_channels=4, dim=24, heads=2, layers=2, ffn_dim=32, freq_dim=16, text_dim=8, buttons=11
)
LATENT_STATE = LatentStateSizes(
    state_dim=16,
    state_tokens=2,
    fsq_levels=(2, 2, 2),
    coupling_width=16,
    coupling_heads=2,
    state_heads=2,
    transition_layers=1,
)
OPEN_GATE = 0.5


@dataclass(frozen=True)
class TinyConditions:
    """Conditions of B samples: `first_latent_BC1HW`, `action_bins_BfK`, `text_BLD`, float32."""

    first_latent_BC1HW: Tensor
    action_bins_BfK: Tensor
    text_BLD: Tensor

    def rows(self, rows: slice) -> TinyConditions:
        """A part of the batch."""
        return TinyConditions(self.first_latent_BC1HW[rows], self.action_bins_BfK[rows], self.text_BLD[rows])


def tiny_transformer(seed: int = 0, gate: float = OPEN_GATE) -> LatentStateTransformer:
    """The model with seeded weights, everything frozen.

    Gates and output head start at 0 in training; here they are opened, or no gradient would reach anything.
    """
    model = LatentStateTransformer(TRANSFORMER, LATENT_STATE)
    initialise(model, seed)
    with torch.no_grad():
        head = model.proj_out.weight
        head.copy_(0.1 * normal(DrawKey(seed, "tiny_head"), head.shape))
        for name, parameter in model.named_parameters():
            if name.endswith(".gate"):
                parameter.fill_(gate)
    return model.eval().requires_grad_(False)


def latent_shape(batch: int, slots: int) -> tuple[int, int, int, int, int]:
    """[B, C, f, H, W] of this world's latents."""
    return (batch, TRANSFORMER.in_channels, slots, 4, 4)


def tiny_conditions(batch: int, slots: int, seed: int = 0) -> TinyConditions:
    """Seeded conditions; the buttons of every slot differ."""

    def draw(purpose: str, sample: int, shape: tuple[int, ...]) -> Tensor:
        return normal(DrawKey(seed, purpose, candidate=sample), shape)

    _, channels, _, height, width = latent_shape(batch, slots)
    samples = range(batch)
    return TinyConditions(
        torch.stack([draw("tiny_first", b, (channels, 1, height, width)) for b in samples]),
        torch.stack([(draw("tiny_buttons", b, (slots, TRANSFORMER.buttons)) > 0).float() for b in samples]),
        torch.stack([draw("tiny_text", b, (3, TRANSFORMER.text_dim)) for b in samples]),
    )


def velocity(
    model: LatentStateTransformer, latents_BCfHW: Tensor, sigma_B: Tensor, conditions: TinyConditions
) -> Tensor:
    """Velocity [B, C, f, H, W] at one sigma per sample; differentiable where gradients are enabled."""
    pinned = torch.cat([conditions.first_latent_BC1HW, latents_BCfHW[:, :, 1:]], dim=2)
    _, tokens = model.state_sequence(conditions.first_latent_BC1HW, conditions.action_bins_BfK)
    output: Tensor = model(pinned, 1000 * sigma_B, conditions.action_bins_BfK, conditions.text_BLD, tokens)
    return output
