"""Initialisation: seeded, complete, and an untrained model that starts where the rules say."""

from __future__ import annotations

import pytest
import torch

from stateplay_rl.worlds.native.initialise import initialise
from stateplay_rl.worlds.native.presets import PRESETS
from stateplay_rl.worlds.native.transformer import LatentStateTransformer


def arena(seed):
    model = LatentStateTransformer(PRESETS["arena"].transformer, PRESETS["arena"].latent_state)
    initialise(model, seed)
    return model.state_dict()


def test_the_seed_decides_every_parameter():
    first, second, other = arena(1), arena(1), arena(2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["blocks.0.attn1.to_q.weight"], other["blocks.0.attn1.to_q.weight"])


def test_rules_reach_their_parameters():
    state = arena(1)
    assert state["proj_out.weight"].abs().max() == 0
    assert all(state[f"blocks.{n}.latent_state_attention.gate"].item() == 0 for n in range(5))
    assert state["blocks.0.norm2.weight"].min() == 1
    assert abs(float(state["condition_embedder.text_embedder.linear_1.weight"].std()) - 0.02) < 0.002
    assert abs(float(state["blocks.0.scale_shift_table"].std()) - 120**-0.5) < 0.02
    assert float(state["latent_state_rollout.transition.delta.weight"].std()) < 0.03


def test_unknown_parameters_are_refused():
    module = torch.nn.Module()
    module.register_parameter("mystery", torch.nn.Parameter(torch.zeros(2)))
    with pytest.raises(ValueError, match="mystery"):
        initialise(module, 0)
