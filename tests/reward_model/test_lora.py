"""LoRA: exactly the wanted modules, counted per layer type; saved and loaded without a changed bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from stateplay_rl.errors import CheckError, InputError
from stateplay_rl.reward_model import lora
from stateplay_rl.reward_model.base_model import BaseModel
from tests.reward_model.small_groups import load_small_model


def attach(base: BaseModel, seed: int = 1) -> object:
    return lora.attach(
        base.model, lora.find_targets(base.model, base.layer_types), rank=4, alpha=8, dropout=0.0, seed=seed
    )


def test_targets_of_the_9b_shapes() -> None:
    """24 DeltaNet and 8 full-attention layers, from the installed version's own module names."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    config = Qwen3_5Config(vision_config={"out_hidden_size": 4096})
    with torch.device("meta"):
        model = Qwen3_5ForConditionalGeneration(config)
    found = lora.find_targets(model, config.text_config.layer_types)
    assert found.counts == {
        **{f"full_attention.{name}": 8 for name in lora.ATTENTION},
        **{f"linear_attention.{name}": 24 for name in lora.DELTANET},
        **{f"mlp.{name}": 32 for name in lora.MLP},
    }
    assert not any("visual" in name for name in found.names)
    linears = dict(model.named_modules())
    weights = sum(16 * sum(linears[name].weight.shape) for name in found.names)
    # By hand, rank 16: 8 x 16 x (12288 + 5120 + 5120 + 8192) + 24 x 16 x (12288 + 8192 + 8192) + 32 x 16 x 3 x 16384.
    assert weights == 40_108_032


def test_a_layer_type_without_its_modules_is_an_error(base: BaseModel) -> None:
    base.model.model.language_model.layers[0].linear_attn.in_proj_z = nn.Identity()
    with pytest.raises(CheckError, match="in_proj_z"):
        lora.find_targets(base.model, base.layer_types)


def test_a_renamed_module_is_an_error(base: BaseModel) -> None:
    attention = base.model.model.language_model.layers[3].self_attn
    attention.query, attention.q_proj = attention.q_proj, None
    with pytest.raises(CheckError, match=r"full_attention\.q_proj: 0, not 1"):
        lora.find_targets(base.model, base.layer_types)


def test_only_the_adapter_learns_and_it_starts_as_nothing(base: BaseModel) -> None:
    before = {name: p.clone() for name, p in base.model.named_parameters()}
    wrapped = attach(base)
    trained = lora.trained_parameters(wrapped)
    assert len(trained) == 2 * len(lora.find_targets_of(wrapped))
    assert all(bool((p == 0).all()) for name, p in trained.items() if ".lora_B." in name)
    assert all(float(p.detach().abs().max()) > 0 for name, p in trained.items() if ".lora_A." in name)
    assert all(p.dtype == torch.float32 for p in trained.values())
    after = {name.replace(".base_layer", ""): p for name, p in base.model.named_parameters() if ".lora_" not in name}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_start_depends_on_the_seed_alone(small_folder: Path) -> None:
    torch.rand(3)
    first = lora.adapter_state(attach(load_small_model(small_folder)))
    torch.rand(5)
    second = lora.adapter_state(attach(load_small_model(small_folder)))
    other = lora.adapter_state(attach(load_small_model(small_folder), seed=2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_an_adapter_is_loaded_as_it_was_saved(small_folder: Path, tmp_path: Path) -> None:
    wrapped = attach(load_small_model(small_folder))
    with torch.no_grad():
        for parameter in lora.trained_parameters(wrapped).values():
            parameter.normal_()
    lora.save_adapter(wrapped, tmp_path / "adapter", "small")
    loaded = lora.load_adapter(load_small_model(small_folder).model, tmp_path / "adapter")
    assert not lora.trained_parameters(loaded)
    found = {name: p for name, p in loaded.named_parameters() if ".lora_" in name}
    expected = lora.adapter_state(wrapped)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_saved_files_fit_a_server_and_name_no_place(small_folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        lora.save_adapter(attach(load_small_model(small_folder)), tmp_path / name, "small")
    config = json.loads((tmp_path / "one" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "small"
    assert config["target_modules"] == sorted(lora.SUFFIXES)
    assert (config["r"], config["lora_alpha"]) == (4, 8)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_a_folder_without_an_adapter_and_one_of_another_base_are_refused(small_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no PEFT adapter"):
        lora.load_adapter(load_small_model(small_folder).model, tmp_path)
    lora.save_adapter(attach(load_small_model(small_folder)), tmp_path / "adapter", "small")
    from safetensors.torch import load_file, save_file

    file = tmp_path / "adapter" / lora.ADAPTER_WEIGHTS
    state = load_file(file)
    save_file(dict(list(state.items())[:-1]), file)
    with pytest.raises(InputError, match="does not fit"):
        lora.load_adapter(load_small_model(small_folder).model, tmp_path / "adapter")
