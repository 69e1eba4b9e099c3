"""Backbone parity with the public code, batch invariance, coupling, checkpointing, dtype rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from safetensors.torch import load_file

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native import coupling_lora
from stateplay_rl.worlds.native.keymap import from_training_names
from stateplay_rl.worlds.native.presets import sizes_from_shapes
from stateplay_rl.worlds.native.transformer import LatentStateTransformer

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="module")
def golden_backbone():
    weights = load_file(GOLDEN / "backbone_weights.safetensors")
    heads = json.loads((GOLDEN / "backbone_config.json").read_text())["config"]["num_heads"]
    sizes = sizes_from_shapes({key: tuple(tensor.shape) for key, tensor in weights.items()}, heads=heads)
    backbone = LatentStateTransformer(sizes.transformer)
    renamed = from_training_names(weights)
    assert renamed.unmatched == ()
    backbone.load_state_dict(renamed.state, strict=True)
    return backbone


@pytest.mark.parametrize("case", [0, 1, 2])
def test_golden_backbone(golden_backbone, relative, case):
    io = {
        key.split(".")[1]: tensor
        for key, tensor in load_file(GOLDEN / "backbone_io.safetensors").items()
        if key.startswith(f"case{case}.")
    }
    timesteps_B = io["timestep"].expand(len(io["latents"]))
    with torch.no_grad():
        velocity, hidden = golden_backbone.trace(
            io["latents"], timesteps_B, io["action_binned"], io["context"], keep=(0, 2)
        )
    assert set(hidden) == {0, 2}
    assert relative(velocity, io["pred_video"]) < 1e-5
    assert relative(hidden[0], io["block0"]) < 1e-5
    assert relative(hidden[2], io["block2"]) < 1e-5


def test_the_plain_backbone_equals_diffusers(model_factory, inputs, relative):
    """Without actions and state, the module names and the function are those of diffusers' own class."""
    ours = model_factory(latent_state=False)
    for embedder in ours.action_embedders:
        torch.nn.init.zeros_(embedder.weight)
    theirs = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=24,
        in_channels=4,
        out_channels=4,
        text_dim=12,
        freq_dim=16,
        ffn_dim=64,
        num_layers=2,
    )
    state = {name: value for name, value in ours.state_dict().items() if "action_embedders" not in name}
    theirs.load_state_dict(state, strict=True)
    slots, tokens = 4, 6
    timesteps_BN = inputs.timesteps_B[:, None].repeat(1, slots * tokens)
    timesteps_BN[:, :tokens] = 0
    with torch.no_grad():
        expected = theirs(inputs.latents_BCfHW, timesteps_BN, inputs.text_BLD, return_dict=False)[0]
        args = (inputs.latents_BCfHW, inputs.timesteps_B, inputs.action_bins_BfK, inputs.text_BLD)
        assert relative(ours(*args), expected) < 1e-5


def run(model, x):
    _, tokens = model.state_sequence(x.latents_BCfHW[:, :, :1], x.action_bins_BfK)
    return model(x.latents_BCfHW, x.timesteps_B, x.action_bins_BfK, x.text_BLD, tokens)


def test_a_batch_equals_its_samples(model, inputs, relative):
    """Each sample has its own sigma."""
    assert len(set(inputs.timesteps_B.tolist())) == 3
    with torch.no_grad():
        together = run(model, inputs)
        for index in range(3):
            assert relative(together[index : index + 1], run(model, inputs.row(index))) < 1e-5


def test_sigma_of_one_sample_leaves_the_others_alone(model, inputs):
    with torch.no_grad():
        before = run(model, inputs)
        inputs.timesteps_B[1] = 3.0
        after = run(model, inputs)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert not torch.allclose(before[1], after[1])


def test_timesteps_are_rounded_to_the_compute_dtype(model_factory, inputs):
    """In bfloat16, 1000 * sigma = 833 and 834 are both 832, and 830 is not."""
    model = model_factory()
    model.compute_dtype = torch.bfloat16
    x = inputs.row(0)
    with torch.no_grad():
        outputs = [
            run(model, type(x)(x.latents_BCfHW, torch.tensor([t]), x.action_bins_BfK, x.text_BLD))
            for t in (832.0, 833.0, 830.0 - 2)
        ]
    assert outputs[0].dtype == torch.bfloat16
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_zero_gates_reproduce_the_backbone_exactly(model_factory, inputs):
    coupled = model_factory(gate=0.0)
    plain = model_factory(latent_state=False)
    plain.load_state_dict({name: coupled.state_dict()[name] for name in plain.state_dict()})
    with torch.no_grad():
        expected = plain(inputs.latents_BCfHW, inputs.timesteps_B, inputs.action_bins_BfK, inputs.text_BLD)
        assert torch.equal(run(coupled, inputs), expected)
        assert not torch.equal(run(model_factory(gate=0.5), inputs), expected)


def test_video_slots_see_state_slots_up_to_their_own(model_factory, inputs):
    """In one block self-attention comes before the coupling: state slot j moves video slots >= j only."""
    model = model_factory(layers=1)
    _, tokens = model.state_sequence(inputs.latents_BCfHW[:, :, :1], inputs.action_bins_BfK)
    args = (inputs.latents_BCfHW, inputs.timesteps_B, inputs.action_bins_BfK, inputs.text_BLD)
    with torch.no_grad():
        before = model(*args, tokens)
        for j in range(4):
            changed = tokens.unflatten(1, (4, 3)).clone()
            changed[:, j] += torch.randn(changed[:, j].shape, generator=torch.Generator().manual_seed(j))
            moved = (model(*args, changed.flatten(1, 2)) != before).flatten(3).any(3).any(1).all(0)
            assert moved.tolist() == [i >= j for i in range(4)]


def test_each_slot_gets_its_own_action(model_factory, inputs):
    """With one block whose attention is silenced, bin i moves slot i only."""
    model = model_factory(layers=1, latent_state=False)
    torch.nn.init.zeros_(model.blocks[0].attn1.to_out[0].weight)
    args = (inputs.latents_BCfHW, inputs.timesteps_B)
    with torch.no_grad():
        before = model(*args, inputs.action_bins_BfK, inputs.text_BLD)
        for i in range(4):
            bins = inputs.action_bins_BfK.clone()
            bins[:, i] = 1 - bins[:, i]
            moved = (model(*args, bins, inputs.text_BLD) != before).flatten(3).any(3).any(1).all(0)
            assert moved.tolist() == [slot == i for slot in range(4)]


def test_text_keys_and_values_can_be_reused(model, inputs):
    with torch.no_grad():
        cached = model.text_keys_values(inputs.text_BLD)
        order = torch.tensor([2, 0, 0])
        _, tokens = model.state_sequence(inputs.latents_BCfHW[:, :, :1], inputs.action_bins_BfK)
        args = (inputs.latents_BCfHW, inputs.timesteps_B, inputs.action_bins_BfK)
        assert torch.equal(model(*args, cached, tokens), model(*args, inputs.text_BLD, tokens))
        torch.testing.assert_close(
            model(*args, cached.select(order), tokens), model(*args, inputs.text_BLD[order], tokens)
        )


def test_checkpointing_changes_no_gradient(model_factory, inputs):
    grads = []
    for checkpointing in ("off", "selective", "full"):
        model = model_factory()
        model.checkpointing = checkpointing
        run(model, inputs).square().mean().backward()
        grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    for other in grads[1:]:
        assert grads[0].keys() == other.keys()
        for name, grad in grads[0].items():
            torch.testing.assert_close(other[name], grad, msg=name)


def test_a_frozen_trunk_passes_the_gradient_to_module_b(model, inputs):
    model.requires_grad_(False)
    model.latent_state_rollout.transition.requires_grad_(True)
    run(model, inputs)[:, :, 1:].square().mean().backward()
    for name, parameter in model.latent_state_rollout.transition.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_rotary_tables_stay_float32_and_survive_inference_mode(model, inputs):
    with torch.inference_mode():
        run(model, inputs)
    model.to(torch.bfloat16)
    assert all(table.dtype == torch.float32 for tables in model._rotary.values() for table in tables)
    model.to(torch.float32)
    run(model, inputs).sum().backward()


def test_rotary_tables_of_another_device_survive_inference_mode(model):
    """Moved under inference mode they could not be saved for a backward; the meta device stands for a GPU."""
    with torch.inference_mode():
        tables = model._rotary_tables(2, 2, 2, torch.device("meta"))
    assert not any(table.is_inference() for table in tables)


def test_bfloat16_compute_on_float32_weights_is_close(model, inputs, relative):
    with torch.no_grad():
        expected = run(model, inputs)
        model.compute_dtype = torch.bfloat16
        assert relative(run(model, inputs).float(), expected) < 0.05


def test_freezing_changes_no_bit(model, inputs):
    with torch.no_grad():
        trained = run(model, inputs)
        model.requires_grad_(False)
        assert torch.equal(run(model, inputs), trained)


def test_inputs_that_do_not_fit_are_refused(model, model_factory, inputs):
    args = (inputs.latents_BCfHW, inputs.timesteps_B)
    with pytest.raises(InputError, match="state tokens"):
        model(*args, inputs.action_bins_BfK, inputs.text_BLD)
    with pytest.raises(InputError, match="action bins"):
        model_factory(latent_state=False)(*args, inputs.action_bins_BfK[:, :2], inputs.text_BLD)
    with pytest.raises(InputError, match="buttons"):
        model_factory(latent_state=False)(*args, None, inputs.text_BLD)
    with pytest.raises(InputError, match="no latent-state modules"):
        model_factory(latent_state=False).state_sequence(inputs.latents_BCfHW[:, :, :1], inputs.action_bins_BfK)


@pytest.mark.parametrize("adapter", [False, True])
def test_blocks_compile_once_and_without_graph_breaks(model_factory, inputs, relative, adapter):
    """All blocks share one graph; `fullgraph` raises on a break."""
    model = model_factory(layers=3)
    if adapter:
        coupling_lora.inject(model, seed=0)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    with torch.no_grad():
        expected = run(model, inputs)
        model.compile_blocks(fullgraph=True, backend="aot_eager")
        assert relative(run(model, inputs), expected) < 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # one block, one transition step
    run(model, inputs).sum().backward()
    model.run_uncompiled()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.no_grad():
        assert torch.equal(run(model, inputs), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
