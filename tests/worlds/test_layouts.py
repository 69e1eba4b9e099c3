"""One world in every layout that its files may have: loaded, the tensors are the same bits."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.load import load_native_world, require_policy
from stateplay_rl.worlds.native.keymap import from_training_names
from stateplay_rl.worlds.native.original_names import text_to_original, vae_to_original
from stateplay_rl.worlds.native.world import NativeWorld
from stateplay_rl.worlds.world_files import (
    LATENT_WORLD,
    TEXT_ENCODER,
    TEXT_TOKENIZER,
    TRANSITION_TOKENIZER,
    VAE,
    arena_weights_folder,
    arena_world,
    resolve_world,
)

SCOPED = ("latent_state", "transition_predictor", "action_embedders")
ARENA = arena_weights_folder()


@pytest.fixture(scope="module")
def packaged() -> NativeWorld:
    return load_native_world(arena_world())


def scoped(name: str) -> bool:
    return any(word in name for word in SCOPED)


def world_file(folder: Path, files: dict[str, Any], **changes: Any) -> Path:
    tokenizer = {
        "transition_tokenizer": str(ARENA / TRANSITION_TOKENIZER),
        "text_tokenizer": str(ARENA / TEXT_TOKENIZER),
    }
    named = {"vae": str(ARENA / VAE), "text_encoder": str(ARENA / TEXT_ENCODER), **tokenizer, **files}
    sizes = {"frame_height": 64, "frame_width": 96, "compute_dtype": "float32", "device": "cpu"}
    (folder / "world.yaml").write_text(
        yaml.safe_dump({"name": "layout", "preset": "arena", "files": named, **sizes, **changes})
    )
    return folder / "world.yaml"


def states(world: NativeWorld) -> dict[str, torch.Tensor]:
    parts = world.modules
    modules = {"t": parts.transformer, "k": parts.tokenizer, "v": parts.vae, "x": parts.text.model}
    return {f"{key}.{name}": value for key, m in modules.items() for name, value in m.state_dict().items()}


def load(file: Path) -> NativeWorld:
    return load_native_world(resolve_world(str(file)))


def assert_same(one: NativeWorld, other: NativeWorld) -> None:
    left, right = states(one), states(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def original_layout(folder: Path) -> dict[str, Any]:
    """Scoped checkpoint with wrapped names and scalar gates, shards with an index, original `.pth` files."""
    tensors = load_file(ARENA / LATENT_WORLD)
    trained = {
        f"_orig_mod.module.pipe.dit.{k}": (v.reshape(()) if k.endswith("gate") else v)
        for k, v in tensors.items()
        if scoped(k)
    }
    save_file(trained, folder / "step-4572.safetensors")
    backbone = [k for k in tensors if not scoped(k)]
    base = folder / "base"
    base.mkdir()
    weight_map = {}
    for number in range(3):
        shard = f"diffusion_pytorch_model-{number + 1:05d}-of-00003.safetensors"
        save_file({k: tensors[k] for k in backbone[number::3]}, base / shard)
        weight_map |= dict.fromkeys(backbone[number::3], shard)
    (base / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    vae = load_file(ARENA / VAE)
    statistics = {name: vae.pop(name) for name in ("latents_mean", "latents_std")}
    torch.save({**vae_to_original(vae, num_res_blocks=1), **statistics}, base / "Wan2.2_VAE.pth")
    text = load_file(ARENA / TEXT_ENCODER)
    text.pop("encoder.embed_tokens.weight", None)  # the tied copy, which the original file does not hold
    torch.save(text_to_original(text), base / "models_t5.pth")
    torch.save({"state_dict": load_file(ARENA / TRANSITION_TOKENIZER)}, folder / "tokenizer.pt")
    return {
        "checkpoint": "step-4572.safetensors",
        "base": "base",
        "vae": "base/Wan2.2_VAE.pth",
        "text_encoder": "base/models_t5.pth",
        "transition_tokenizer": "tokenizer.pt",
    }


def diffusers_layout(folder: Path) -> dict[str, Any]:
    """Our own names are diffusers' names: transformer, VAE and text encoder in folders of their own."""
    for part in ("transformer", "vae", "text_encoder"):
        (folder / part).mkdir()
    state = from_training_names(load_file(ARENA / LATENT_WORLD)).state
    save_file({k: v for k, v in state.items() if not scoped(k)}, folder / "transformer" / "model.safetensors")
    save_file({k: v for k, v in state.items() if scoped(k)}, folder / "latent.safetensors")
    save_file(load_file(ARENA / VAE), folder / "vae" / "diffusion_pytorch_model.safetensors")
    text = load_file(ARENA / TEXT_ENCODER)
    names = list(text)
    shards = {f"model-0000{n + 1}-of-00002.safetensors": names[n::2] for n in range(2)}
    for shard, part in shards.items():
        save_file({name: text[name] for name in part}, folder / "text_encoder" / shard)
    index = {name: shard for shard, part in shards.items() for name in part}
    (folder / "text_encoder" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return {
        "checkpoint": "latent.safetensors",
        "base": "transformer",
        "vae": "vae",
        "text_encoder": "text_encoder/model.safetensors.index.json",
    }


@pytest.mark.parametrize("layout", [original_layout, diffusers_layout])
def test_every_layout_is_the_same_world(
    packaged: NativeWorld, tmp_path: Path, layout: Callable[[Path], dict[str, Any]]
) -> None:
    assert_same(load(world_file(tmp_path, layout(tmp_path))), packaged)


def test_the_checkpoints_own_tensors_win_over_the_base(packaged: NativeWorld, tmp_path: Path) -> None:
    tensors = load_file(ARENA / LATENT_WORLD)
    save_file({k: torch.zeros_like(v) for k, v in tensors.items()}, tmp_path / "base.safetensors")
    files = {"checkpoint": str(ARENA / LATENT_WORLD), "base": ["base.safetensors"]}
    joined = load(world_file(tmp_path, files))
    assert_same(joined, packaged)
    assert joined.sha256 != packaged.sha256


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("head.head.bias"), r"1 missing: proj_out\.bias"),
        (lambda t: t.update({"pipe.dit.head.head.bias": torch.zeros(64)}), "equal without their prefixes"),
        (lambda t: t.update({"latent_state_rollout.secret": torch.zeros(1)}), "secret"),
        (lambda t: t.update({"proj_out.bias": torch.zeros(64)}), r"two keys map to proj_out\.bias"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, torch.Tensor]], Any], message: str
) -> None:
    tensors = load_file(ARENA / LATENT_WORLD)
    change(tensors)
    save_file(tensors, tmp_path / "c.safetensors")
    config = resolve_world(str(world_file(tmp_path, {"checkpoint": "c.safetensors"})))
    from stateplay_rl.worlds.native import package
    from stateplay_rl.worlds.native.architecture import architecture_of

    monkeypatch.setattr("stateplay_rl.worlds.native.fill.stream", lambda *a: pytest.fail("a value was read"))
    with pytest.raises(InputError, match=message):
        package.load_transformer(config, architecture_of(config), torch.float32, torch.device("cpu"))


def test_absent_quantizer_buffers_are_filled_from_the_description(packaged: NativeWorld, tmp_path: Path) -> None:
    kept = {k: v for k, v in load_file(ARENA / TRANSITION_TOKENIZER).items() if not k.startswith("quantizer.")}
    save_file(kept, tmp_path / "tokenizer.safetensors")
    files = {"checkpoint": str(ARENA / LATENT_WORLD), "transition_tokenizer": "tokenizer.safetensors"}
    assert_same(load(world_file(tmp_path, files)), packaged)
    with pytest.raises(InputError, match="FSQ levels"):
        load(
            world_file(
                tmp_path,
                {"checkpoint": str(ARENA / LATENT_WORLD)},
                architecture={"fsq_levels": [16, 8, 4]},
            )
        )


def test_exports_have_the_checkpoints_own_spelling(tmp_path: Path) -> None:
    """Scalar gates go out as scalars; the policy fits back into the world that it came from."""
    file = world_file(tmp_path, original_layout(tmp_path))
    world = load(file)
    world.set_mode("full")
    policy = world.export_policy("live")
    gates = [name for name in policy if name.endswith("gate")]
    assert len(gates) == 5
    assert all(policy[name].shape == () for name in gates)
    save_file({k: v.contiguous() for k, v in policy.items()}, tmp_path / "policy.safetensors")
    require_policy(resolve_world(str(file)), tmp_path / "policy.safetensors")
    again = load(file)
    again.apply_policy(policy, "policy")
    assert_same(again, load(file))


def test_the_export_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    world = load_native_world(arena_world())
    (group,) = world.set_mode("transition")
    with torch.no_grad():
        group.parameters[0].add_(1.0)
    policy = world.export_policy("live")
    save_file(policy, tmp_path / "policy.safetensors")
    script = Path(__file__).resolve().parents[2] / "examples" / "export_checkpoint.py"
    out = tmp_path / "out.safetensors"
    arguments = ["--world", "arena", "--policy", str(tmp_path / "policy.safetensors"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["export_checkpoint.py", *arguments])
    runpy.run_path(str(script), run_name="__main__")
    assert f"{len(policy)} from the policy, 0 added" in capsys.readouterr().out
    before, after = load_file(ARENA / LATENT_WORLD), load_file(out)
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(changed) == 1
    assert changed[0].startswith("latent_state_rollout.transition.")
