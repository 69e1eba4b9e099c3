"""Small models and inputs of the native world's tests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from stateplay_rl.worlds.native.initialise import initialise
from stateplay_rl.worlds.native.presets import LatentStateSizes, TransformerSizes
from stateplay_rl.worlds.native.transformer import LatentStateTransformer

SMALL = TransformerSizes(in_channels=4, dim=48, heads=2, layers=2, ffn_dim=64, freq_dim=16, text_dim=12)
SMALL_STATE = LatentStateSizes(
    state_dim=16, state_tokens=3, fsq_levels=(4, 4, 4), coupling_width=8, coupling_heads=2, state_heads=2
)


@dataclass(frozen=True)
class Inputs:
    """One batch of inputs of `SMALL`."""

    latents_BCfHW: Tensor
    timesteps_B: Tensor
    action_bins_BfK: Tensor
    text_BLD: Tensor

    def row(self, index: int) -> Inputs:
        part = slice(index, index + 1)
        return Inputs(self.latents_BCfHW[part], self.timesteps_B[part], self.action_bins_BfK[part], self.text_BLD[part])


def make_inputs(batch: int = 3, slots: int = 4) -> Inputs:
    generator = torch.Generator().manual_seed(7)
    return Inputs(
        torch.randn(batch, 4, slots, 4, 6, generator=generator),
        torch.rand(batch, generator=generator) * 1000,
        torch.rand(batch, slots, 11, generator=generator),
        torch.randn(batch, 5, 12, generator=generator),
    )


def make_model(layers: int = 2, gate: float = 0.5, latent_state: bool = True) -> LatentStateTransformer:
    """A small model with open gates and a head that is not zero, so that everything reaches the output."""
    sizes = TransformerSizes(4, 48, 2, layers, 64, 16, 12)
    model = LatentStateTransformer(sizes, SMALL_STATE if latent_state else None)
    initialise(model, seed=1)
    with torch.no_grad():
        torch.nn.init.normal_(model.proj_out.weight, std=0.1, generator=torch.Generator().manual_seed(2))
        for name, parameter in model.named_parameters():
            if name.endswith(".gate"):
                parameter.fill_(gate)
    return model


@pytest.fixture
def inputs() -> Inputs:
    return make_inputs()


@pytest.fixture
def model() -> LatentStateTransformer:
    return make_model()


@pytest.fixture
def model_factory():
    return make_model


@pytest.fixture
def inputs_factory():
    return make_inputs


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest magnitude."""
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.fixture
def relative():
    return relative_error
