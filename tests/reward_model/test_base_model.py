"""Which checkpoints are accepted as a base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from stateplay_rl.errors import CorruptionError, InputError, UsageError
from stateplay_rl.reward_model.base_model import load_base, model_sha256, resolve_model
from tests.reward_model.small_groups import load_small_model


def changed(folder: Path, target: Path, **changes: Any) -> Path:
    """A copy of a model folder with other values in its config; None removes one."""
    shutil.copytree(folder, target)
    file = target / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return target


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "qwen3_5_text"}, "text-only"),
        ({"vision_config": None}, "text-only"),
        ({"model_type": "qwen3_vl"}, "another family"),
        ({"model_type": "llama"}, "another family"),
    ],
)
def test_other_families_are_refused_with_the_reason(
    small_folder: Path, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        load_small_model(changed(small_folder, tmp_path / "model", **changes))


def test_missing_and_damaged_folders_are_refused(small_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hf download"):
        resolve_model(tmp_path / "nowhere")
    broken = changed(small_folder, tmp_path / "broken")
    (broken / "config.json").write_text("{")
    with pytest.raises(CorruptionError):
        load_small_model(broken)
    no_tokenizer = changed(small_folder, tmp_path / "no_tokenizer")
    for file in no_tokenizer.glob("*token*"):
        file.unlink()
    with pytest.raises(InputError, match="tokenizer"):
        load_small_model(no_tokenizer)


def test_a_checkpoint_that_lacks_tensors_is_refused(small_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = changed(small_folder, tmp_path / "model")
    file = folder / "model.safetensors"
    state = load_file(file)
    state.pop(next(name for name in state if "in_proj_z" in name))
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match="lacks 1 tensors"):
        load_small_model(folder)


def test_the_hash_covers_weights_and_settings(small_folder: Path, tmp_path: Path) -> None:
    folder = changed(small_folder, tmp_path / "model")
    shutil.copy(small_folder / "config.json", folder / "config.json")
    assert model_sha256(folder) == model_sha256(small_folder)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b" ")
    assert model_sha256(folder) != model_sha256(small_folder)


def test_four_bits_need_a_gpu(small_folder: Path) -> None:
    with pytest.raises(UsageError, match="nf4"):
        load_base(small_folder, device=torch.device("cpu"), precision="nf4", rule="auto")


def test_a_loaded_base_is_frozen(small_folder: Path) -> None:
    base = load_small_model(small_folder)
    assert not any(p.requires_grad for p in base.model.parameters())
    assert list(base.layer_types) == ["linear_attention"] * 3 + ["full_attention"]
