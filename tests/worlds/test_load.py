"""World files: resolving, hashing, loading key by key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import CorruptionError, InputError, UsageError
from stateplay_rl.worlds.load import load_world, resolve_device
from stateplay_rl.worlds.native.initialise import initialise
from stateplay_rl.worlds.native.presets import preset
from stateplay_rl.worlds.native.text import (
    TEXT_PRESETS,
    TextEncoder,
    build_text_model,
    load_tokenizer,
    train_tokenizer,
)
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
from stateplay_rl.worlds.native.vae import VAE_PRESETS, VideoVae
from stateplay_rl.worlds.native.world import NativeModules
from stateplay_rl.worlds.world_files import LATENT_WORLD, VAE, WEIGHT_HASHES, arena_world, resolve_world
from tests.worlds.files import write_world_files
from tests.worlds.tiny import PROMPTS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Random weights of the arena preset with a world file beside them."""
    sizes = preset("arena")
    vocabulary = train_tokenizer(PROMPTS, tmp_path / "trained.json")
    transformer = LatentStateTransformer(sizes.transformer, sizes.latent_state)
    tokenizer = TransitionTokenizer(sizes.tokenizer)
    initialise(transformer, 0)
    initialise(tokenizer, 1)
    text = TextEncoder(
        TEXT_PRESETS["arena"],
        build_text_model(TEXT_PRESETS["arena"], vocabulary),
        load_tokenizer(tmp_path / "trained.json"),
    )
    modules = NativeModules(transformer, tokenizer, VideoVae(VAE_PRESETS["arena"]), text)
    weights = tmp_path / "weights"
    weights.mkdir()
    write_world_files(weights, modules, tmp_path / "trained.json", {"seed": "0"})
    world = {
        "name": "trial",
        "preset": "arena",
        "files": {
            "checkpoint": LATENT_WORLD,
            "transition_tokenizer": "transition_tokenizer.safetensors",
            "vae": VAE,
            "text_encoder": "text_encoder.safetensors",
            "text_tokenizer": "text_tokenizer.json",
        },
        "frame_height": 64,
        "frame_width": 96,
        "compute_dtype": "float32",
        "device": "cpu",
    }
    (weights / "world.yaml").write_text(yaml.safe_dump(world))
    return weights


def rewrite(file: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = {**load_file(file), **change}
    save_file({name: value for name, value in tensors.items() if value is not None}, file)


def test_a_world_file_and_the_packaged_way_load_the_same_world(folder: Path) -> None:
    by_file = load_world(resolve_world(str(folder / "world.yaml")))
    packaged = load_world(arena_world(folder))
    assert by_file.sha256 == packaged.sha256
    assert by_file.encoder_sha256 == packaged.encoder_sha256
    assert (packaged.spec.name, packaged.spec.latent_channels, packaged.spec.spatial_factor) == (
        "arena",
        16,
        8,
    )
    assert packaged.compute_dtype == torch.float32
    assert sum(g.count for g in packaged.set_mode("full")) == 1_491_637


def test_weights_are_stored_in_bfloat16_under_training_names(folder: Path) -> None:
    stored = load_file(folder / LATENT_WORLD)
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    assert "blocks.4.self_attn.norm_q.weight" in stored
    assert load_file(folder / VAE)["latents_std"].dtype == torch.float32


def test_hashes_tell_what_changed(folder: Path) -> None:
    before = load_world(resolve_world(str(folder / "world.yaml")))
    rewrite(folder / LATENT_WORLD, {"head.head.bias": torch.ones(64, dtype=torch.bfloat16)})
    other_policy = load_world(resolve_world(str(folder / "world.yaml")))
    assert other_policy.sha256 != before.sha256
    assert other_policy.encoder_sha256 == before.encoder_sha256
    rewrite(folder / VAE, {"latents_mean": torch.ones(16)})
    assert load_world(resolve_world(str(folder / "world.yaml"))).encoder_sha256 != before.encoder_sha256


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head.head.bias": None}, r"1 missing: proj_out\.bias"),
        ({"head.head.bias": torch.zeros(3)}, r"proj_out\.bias \[3\] instead of \[64\]"),
        ({"blocks.9.modulation": torch.zeros(1, 6, 120)}, r"unexpected: blocks\.9"),
        ({"state_encoder.weight": torch.zeros(1)}, r"does not know, first state_encoder\.weight"),
    ],
)
def test_keys_that_do_not_fit_are_named(folder: Path, change: dict[str, torch.Tensor | None], message: str) -> None:
    rewrite(folder / LATENT_WORLD, change)
    with pytest.raises(InputError, match=message):
        load_world(resolve_world(str(folder / "world.yaml")))


def test_a_tokenizer_with_other_levels_is_refused(folder: Path) -> None:
    rewrite(folder / "transition_tokenizer.safetensors", {"quantizer.levels": torch.tensor([8, 8, 4])})
    with pytest.raises(InputError, match="FSQ levels"):
        load_world(resolve_world(str(folder / "world.yaml")))


def test_damaged_packaged_weights_are_refused(folder: Path) -> None:
    data = bytearray((folder / VAE).read_bytes())
    data[-1] ^= 1
    (folder / VAE).write_bytes(bytes(data))
    with pytest.raises(CorruptionError, match=r"vae\.safetensors does not match"):
        arena_world(folder)
    (folder / VAE).unlink()
    with pytest.raises(InputError, match="not found"):
        arena_world(folder)
    (folder / WEIGHT_HASHES).unlink()
    with pytest.raises(InputError, match="not installed"):
        arena_world(folder)


def test_unreadable_and_missing_files(folder: Path) -> None:
    (folder / LATENT_WORLD).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CorruptionError, match="not a readable safetensors"):
        load_world(resolve_world(str(folder / "world.yaml")))
    (folder / LATENT_WORLD).unlink()
    with pytest.raises(InputError, match="weight file not found"):
        resolve_world(str(folder / "world.yaml"))
    with pytest.raises(InputError, match="neither 'arena' nor a file"):
        resolve_world("areana")


def test_world_files_are_strict(folder: Path) -> None:
    values = yaml.safe_load((folder / "world.yaml").read_text())
    values["frame_hight"] = 64
    (folder / "bad.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(UsageError, match="frame_hight"):
        resolve_world(str(folder / "bad.yaml"))


def test_paths_are_relative_to_the_world_file(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    config = resolve_world(str(moved / "world.yaml"))
    assert config.files.vae == moved / VAE
    assert json.loads(config.model_dump_json())["files"]["checkpoint"] == [str(moved / LATENT_WORLD)]
    assert WorldConfig.model_validate_json(config.model_dump_json()) == config


def test_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(UsageError, match="not a device name"):
        resolve_device("gpu7")
    if not torch.cuda.is_available():
        assert resolve_device("auto") == torch.device("cpu")
        with pytest.raises(UsageError, match="does not exist here"):
            resolve_device("cuda:0")
