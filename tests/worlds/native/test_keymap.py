"""Key maps are exact both ways and never drop a key."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native import coupling_lora
from stateplay_rl.worlds.native.keymap import from_training_names, to_training_names
from stateplay_rl.worlds.native.presets import PRESETS
from stateplay_rl.worlds.native.transformer import LatentStateTransformer

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("name", PRESETS)
def test_every_parameter_of_a_preset_has_a_training_name(name):
    preset = PRESETS[name]
    with torch.device("meta"):
        state = LatentStateTransformer(preset.transformer, preset.latent_state).state_dict()
    theirs = to_training_names(state)
    assert theirs.unmatched == ()
    assert len(theirs.state) == len(state)
    assert list(from_training_names(theirs.state).state) == list(state)


def test_round_trip_is_bit_for_bit(model):
    state = model.state_dict()
    back = from_training_names(to_training_names(state).state)
    assert back.unmatched == ()
    assert list(back.state) == list(state)
    assert all(torch.equal(back.state[name], tensor) for name, tensor in state.items())


def test_golden_names_round_trip():
    weights = load_file(GOLDEN / "backbone_weights.safetensors")
    ours = from_training_names(weights)
    theirs = to_training_names(ours.state)
    assert ours.unmatched == theirs.unmatched == ()
    assert theirs.state.keys() == weights.keys()
    assert all(theirs.state[name] is tensor for name, tensor in weights.items())


def test_documented_names():
    pairs = {
        "blocks.3.self_attn.o.bias": "blocks.3.attn1.to_out.0.bias",
        "blocks.3.cross_attn.norm_k.weight": "blocks.3.attn2.norm_k.weight",
        "blocks.3.norm3.weight": "blocks.3.norm2.weight",
        "blocks.3.modulation": "blocks.3.scale_shift_table",
        "blocks.3.latent_state_attention.gate": "blocks.3.latent_state_attention.gate",
        "head.modulation": "scale_shift_table",
        "action_embedders.3.weight": "action_embedders.3.weight",
    }
    assert from_training_names(dict.fromkeys(pairs, 0)).state.keys() == set(pairs.values())


def test_unmatched_keys_are_returned():
    state = {
        "blocks.0.state_self_attn.q.weight": 1,
        "state_encoder.0.bias": 2,
        "latent_state_rollout.transition.surprise": 3,
        "patch_embedding.bias": 4,
    }
    renamed = from_training_names(state)
    assert renamed.unmatched == tuple(state)[:3]
    assert renamed.state == {"patch_embedding.bias": 4}
    assert to_training_names({"blocks.0.attn1.to_q.lora_A.default.weight": 0}).unmatched


def test_translations_of_foreign_inner_names_go_both_ways():
    translations = (
        (
            "latent_state_rollout.transition.blocks.*.attn",
            "latent_state_rollout.transition.layers.*.attention",
        ),
        ("predictor", "transition_predictor"),
    )
    state = {"latent_state_rollout.transition.blocks.1.attn.q.weight": 1, "predictor.head.bias": 2}
    ours = from_training_names(state, translations)
    assert ours.state == {
        "latent_state_rollout.transition.layers.1.attention.q.weight": 1,
        "transition_predictor.head.bias": 2,
    }
    assert to_training_names(ours.state, translations).state == state
    assert from_training_names({"predictors.head.bias": 2}, translations).unmatched == ("predictors.head.bias",)


def test_two_keys_on_one_name_are_refused():
    state = {"predictor.head.bias": 1, "transition_predictor.head.bias": 2}
    with pytest.raises(InputError, match=r"transition_predictor\.head\.bias"):
        from_training_names(state, (("predictor", "transition_predictor"),))


def test_merged_lora_exports_under_plain_names(model):
    names = set(to_training_names(model.state_dict()).state)
    coupling_lora.inject(model, seed=0)
    exported = to_training_names(coupling_lora.merged_state(model))
    assert exported.unmatched == ()
    assert set(exported.state) == names
