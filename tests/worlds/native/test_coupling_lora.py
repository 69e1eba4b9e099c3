"""Coupling LoRA: exact targets, counts, seeded start, merge."""

from __future__ import annotations

import pytest
import torch

from stateplay_rl.errors import CheckError
from stateplay_rl.worlds.native import coupling_lora
from stateplay_rl.worlds.native.presets import PRESETS
from stateplay_rl.worlds.native.transformer import LatentStateTransformer


def run(model, x):
    _, tokens = model.state_sequence(x.latents_BCfHW[:, :, :1], x.action_bins_BfK)
    return model(x.latents_BCfHW, x.timesteps_B, x.action_bins_BfK, x.text_BLD, tokens)


def test_parameter_count_at_full_size():
    """30 blocks x 4 Linears x 8 x (3072 + 256) = 3,194,880."""
    preset = PRESETS["stateplay-5b"]
    with torch.device("meta"):
        model = LatentStateTransformer(preset.transformer, preset.latent_state)
        names = coupling_lora.inject(model, seed=0)
    parameters = dict(model.named_parameters())
    assert len(names) == 30 * 4 * 2
    assert sum(parameters[name].numel() for name in names) == 3_194_880


def test_a_fresh_adapter_changes_nothing(model, inputs):
    model.blocks[0].requires_grad_(False)
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    with torch.no_grad():
        before = run(model, inputs)
        names = coupling_lora.inject(model, seed=0)
        assert torch.equal(run(model, inputs), before)
    after = {name.replace(".base_layer", ""): p.requires_grad for name, p in model.named_parameters()}
    assert after == flags | dict.fromkeys(names, True)


def test_injection_is_seeded_and_leaves_the_global_generator_alone(model_factory):
    states = []
    for seed in (4, 4, 5):
        model = model_factory()
        before = torch.random.get_rng_state()
        names = coupling_lora.inject(model, seed=seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        states.append([dict(model.named_parameters())[name].detach() for name in names])
    assert all(torch.equal(a, b) for a, b in zip(states[0], states[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(states[0], states[2], strict=True))


def test_merge_equals_the_adapted_model(model, model_factory, inputs):
    names = coupling_lora.inject(model, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in names:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
        plain = model_factory()
        before = run(plain, inputs)
        plain.load_state_dict(coupling_lora.merged_state(model), strict=True)
        torch.testing.assert_close(run(plain, inputs), run(model, inputs), atol=1e-5, rtol=1e-4)
        assert not torch.allclose(run(plain, inputs), before, atol=1e-3)


def test_wrong_models_are_refused(model, model_factory):
    with pytest.raises(CheckError, match="are missing"):
        coupling_lora.inject(model_factory(latent_state=False), seed=0)
    coupling_lora.inject(model, seed=0)
    with pytest.raises(CheckError, match="already injected"):
        coupling_lora.inject(model, seed=0)
    with pytest.raises(CheckError, match="expected"):
        coupling_lora.check_injection(model, blocks=3)


def test_a_missing_kind_is_refused(model):
    model.blocks[1].latent_state_attention.out = torch.nn.Identity()
    with pytest.raises(CheckError, match=r"blocks\.1\.latent_state_attention\.out"):
        coupling_lora.inject(model, seed=0)
