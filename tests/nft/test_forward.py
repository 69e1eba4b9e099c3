"""The forward process and its contract on slot 0."""

from __future__ import annotations

import pytest
import torch

from stateplay_rl.nft.forward import noised, without_condition_slot


def test_hand_values():
    """x0 = 2, eps = -1, sigma = 1/4: x_s = 3/4 * 2 - 1/4 = 1.25; v = -3."""
    sample = noised(torch.full((1, 1, 2, 1, 1), 2.0), torch.full((1, 1, 2, 1, 1), -1.0), torch.tensor([0.25]))
    assert bool((sample.x_sigma == 1.25).all())
    assert bool((sample.velocity_target == -3).all())


def test_slot_zero_is_the_first_frame_and_sigma_is_per_sample():
    x0, eps = torch.zeros(2, 1, 3, 1, 1), torch.ones(2, 1, 3, 1, 1)
    first = torch.full((2, 1, 1, 1, 1), 9.0)
    sample = noised(x0, eps, torch.tensor([0.25, 1.0]), first)
    assert sample.x_sigma.flatten(1).tolist() == [[9.0, 0.25, 0.25], [9.0, 1.0, 1.0]]


def test_half_precision_is_upcast_and_float64_kept():
    half = torch.zeros(1, 1, 2, 1, 1, dtype=torch.bfloat16)
    assert noised(half, half.float(), torch.tensor([0.5])).x_sigma.dtype == torch.float32
    assert noised(half.double(), half.double(), torch.tensor([0.5])).x_sigma.dtype == torch.float64


def test_wrong_shapes_and_sigmas_are_refused():
    x = torch.zeros(2, 1, 2, 1, 1)
    with pytest.raises(ValueError, match="differ in shape"):
        noised(x, x[:1], torch.zeros(2))
    with pytest.raises(ValueError, match="one sigma per sample"):
        noised(x, x, torch.zeros(1))
    with pytest.raises(ValueError, match="outside"):
        noised(x, x, torch.tensor([0.5, 1.5]))
    with pytest.raises(ValueError, match="first-frame latent"):
        noised(x, x, torch.zeros(2), x[:1, :, :1])
    with pytest.raises(ValueError, match="slot 0"):
        without_condition_slot(x[:, :, :1])
