"""The anchors on real clips: hand values, slot 0, the training weight, cross-entropy."""

from __future__ import annotations

import math

import pytest
import torch

from stateplay_rl.nft.flow_matching import flow_matching_loss, transition_cross_entropy
from stateplay_rl.nft.forward import noised


def test_hand_values_and_slot_zero():
    """Target 1. Velocity 100 in slot 0, 3 and 1 after: ((3-1)^2 + 0)/2 = 2, times weight 0.5 is 1."""
    shape = (1, 1, 3, 1, 1)
    sample = noised(torch.zeros(shape), torch.ones(shape), torch.tensor([0.5]))
    velocity = torch.tensor([100.0, 3.0, 1.0]).reshape(shape).requires_grad_()
    loss = flow_matching_loss(sample, velocity, torch.tensor([0.5]), has_condition_slot=True)
    assert loss.tolist() == [1.0]
    loss.sum().backward()
    assert velocity.grad.flatten().tolist() == [0.0, 1.0, 0.0]
    cut = noised(torch.zeros(1, 1, 2, 1, 1), torch.ones(1, 1, 2, 1, 1), torch.tensor([0.5]))
    same = flow_matching_loss(cut, velocity[:, :, 1:], torch.tensor([0.5]), has_condition_slot=False)
    assert same.tolist() == [1.0]


def test_weight_and_shapes_are_per_sample():
    sample = noised(torch.zeros(2, 1, 2, 1, 1), torch.ones(2, 1, 2, 1, 1), torch.tensor([0.5, 0.9]))
    loss = flow_matching_loss(sample, torch.zeros(2, 1, 2, 1, 1), torch.tensor([0.0, 2.0]), has_condition_slot=True)
    assert loss.tolist() == [0.0, 2.0]
    with pytest.raises(ValueError, match="weight"):
        flow_matching_loss(sample, torch.zeros(2, 1, 2, 1, 1), torch.ones(1), has_condition_slot=True)


def test_cross_entropy_hand_values():
    """Equal logits over 512 codes cost log 512 nats; a logit of log 3 against one 0 costs log(4/3)."""
    uniform = transition_cross_entropy(torch.zeros(2, 3, 4, 512), torch.zeros(2, 3, 4, dtype=torch.int64))
    assert uniform.tolist() == pytest.approx([math.log(512)] * 2)
    logits = torch.tensor([math.log(3.0), 0.0]).reshape(1, 1, 1, 2)
    assert transition_cross_entropy(logits, torch.zeros(1, 1, 1, dtype=torch.int64)).item() == pytest.approx(
        math.log(4 / 3)
    )


def test_cross_entropy_is_per_sample_and_checks_codes():
    logits = torch.zeros(2, 1, 1, 2)
    logits[1, 0, 0, 1] = 100.0
    loss = transition_cross_entropy(logits.bfloat16(), torch.ones(2, 1, 1, dtype=torch.int64))
    assert loss.dtype == torch.float32
    assert loss.tolist() == pytest.approx([math.log(2), 0.0])
    with pytest.raises(ValueError, match=r"outside 0\.\.1"):
        transition_cross_entropy(logits, torch.full((2, 1, 1), 2))
    with pytest.raises(ValueError, match="for codes"):
        transition_cross_entropy(logits, torch.zeros(2, 2, 1, dtype=torch.int64))
