"""Exported policies go back into the training repository's format, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from stateplay_rl.errors import InputError, OutputError
from stateplay_rl.stages.candidates import policy_sha256
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.worlds.base import ParameterMode
from stateplay_rl.worlds.native.export import write_training_checkpoint
from stateplay_rl.worlds.native.keymap import TrainingLayout, to_training_names
from stateplay_rl.worlds.native.world import NativeModules, NativeWorld
from tests.worlds.tiny import tiny_modules, tiny_world

PREFIX = "module.pipe.dit."
THEIRS = ("their_rollout.step_model", "latent_state_rollout.transition")
MODES: tuple[ParameterMode, ...] = ("transition", "coupling", "joint", "full")


def training_file(path: Path, modules: NativeModules, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """A checkpoint as the trainer writes it: wrapped names, scalar gates, module B under other inner names."""
    state = to_training_names(modules.transformer.state_dict(), (THEIRS,)).state
    tensors = {
        PREFIX + name: (value.reshape(()) if name.endswith(".gate") else value).to(dtype).contiguous()
        for name, value in state.items()
    }
    save_file(tensors, path, {"step": "4572"})
    return tensors


def world_of(modules: NativeModules, dtype: torch.dtype = torch.float32) -> NativeWorld:
    """A tiny world that spells its tensors as `training_file` does."""
    gates = frozenset(f"blocks.{n}.latent_state_attention.gate" for n in range(2))
    world = tiny_world(compute_dtype=dtype)
    layout = TrainingLayout((THEIRS,), gates)
    changed = NativeModules(modules.transformer, modules.tokenizer, modules.vae, modules.text, layout)
    hashes = type("Hashes", (), {"world_sha256": world.sha256, "encoder_sha256": world.encoder_sha256})()
    return NativeWorld(world.spec, changed, hashes, device=world.device, compute_dtype=dtype)


@pytest.mark.parametrize("mode", MODES)
def test_an_untrained_policy_gives_the_checkpoint_back(tmp_path: Path, mode: ParameterMode) -> None:
    modules = tiny_modules(tmp_path)
    for parameter in modules.transformer.parameters():
        parameter.data = parameter.data.bfloat16().float()  # as loaded from a bfloat16 file
    before = training_file(tmp_path / "step.safetensors", modules)
    world = world_of(modules)
    world.set_mode(mode)
    policy = world.export_policy("live")
    assert all(name.startswith((THEIRS[0], "blocks.")) for name in policy) or mode == "full"
    done = write_training_checkpoint(
        [tmp_path / "step.safetensors"], policy, tmp_path / "out.safetensors", translations=(THEIRS,)
    )
    after = load_file(tmp_path / "out.safetensors")
    assert list(after) == list(load_file(tmp_path / "step.safetensors"))
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        assert after[name].shape == value.shape
        assert torch.equal(after[name], value), name
    assert set(done.replaced) == {PREFIX + name for name in policy}
    assert done.added == ()
    assert done.sha256 == sha256_file(tmp_path / "out.safetensors")


def test_trained_values_replace_their_tensors_and_no_other(tmp_path: Path) -> None:
    modules = tiny_modules(tmp_path)
    before = training_file(tmp_path / "step.safetensors", modules)
    world = world_of(modules)
    (group,) = world.set_mode("transition")
    with torch.no_grad():
        for parameter in group.parameters:
            parameter.add_(1.0)
    policy = world.export_policy("live")
    arguments = {"translations": (THEIRS,), "metadata": {"from": "test"}}
    source = [tmp_path / "step.safetensors"]
    rounded = write_training_checkpoint(source, policy, tmp_path / "a.safetensors", **arguments)
    precise = write_training_checkpoint(source, policy, tmp_path / "b.safetensors", keep_precision=True, **arguments)
    assert set(rounded.rounded) == set(rounded.replaced)
    assert precise.rounded == ()
    for file, dtype in (("a", torch.bfloat16), ("b", torch.float32)):
        after = load_file(tmp_path / f"{file}.safetensors")
        for name, value in before.items():
            bare = name.removeprefix(PREFIX)
            expected = policy[bare].to(dtype) if bare in policy else value
            assert torch.equal(after[name], expected), name
    with safe_open(str(tmp_path / "a.safetensors"), framework="pt") as file:
        assert file.metadata() == {"from": "test"}


def test_what_only_the_base_holds_is_added(tmp_path: Path) -> None:
    save_file({"pipe.dit.head.head.bias": torch.zeros(3)}, tmp_path / "scoped.safetensors")
    policy = {"head.head.bias": torch.ones(3), "patch_embedding.bias": torch.ones(2)}
    done = write_training_checkpoint([tmp_path / "scoped.safetensors"], policy, tmp_path / "out.safetensors")
    assert done.added == ("patch_embedding.bias",)
    assert torch.equal(load_file(tmp_path / "out.safetensors")["pipe.dit.head.head.bias"], torch.ones(3))


def test_the_checkpoint_is_protected_and_foreign_policies_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "step.safetensors"
    save_file({"head.head.bias": torch.zeros(3)}, file)
    before = file.read_bytes()
    with pytest.raises(OutputError):
        write_training_checkpoint([file], {}, file)
    with pytest.raises(InputError, match=r"nonsense\.weight"):
        write_training_checkpoint([file], {"nonsense.weight": torch.zeros(1)}, tmp_path / "out.safetensors")
    with pytest.raises(InputError, match=r"\[4\].*\[3\]"):
        write_training_checkpoint([file], {"head.head.bias": torch.zeros(4)}, tmp_path / "out.safetensors")
    assert file.read_bytes() == before
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_keeps_its_name_over_a_bfloat16_world(tmp_path: Path, mode: ParameterMode) -> None:
    """Rounded to the world's bfloat16 it would be another policy than the one that the run exported."""
    run = world_of(tiny_modules(tmp_path, compute_dtype=torch.bfloat16), torch.bfloat16)
    for part in (run.transformer.blocks, run.transformer.proj_out):
        part.to(torch.bfloat16)
    groups = run.set_mode(mode)
    with torch.no_grad():
        for group in groups:
            for number, parameter in enumerate(group.parameters):
                parameter.add_(torch.full_like(parameter, 1e-4 * (number + 1)))
    policy = run.export_policy("live")
    assert any(not torch.equal(value, value.bfloat16().float()) for value in policy.values())

    again = world_of(tiny_modules(tmp_path, compute_dtype=torch.bfloat16), torch.bfloat16)
    for part in (again.transformer.blocks, again.transformer.proj_out):
        part.to(torch.bfloat16)
    again.apply_policy(policy, "policy")
    again.set_mode(mode)
    assert policy_sha256(again, "live") == policy_sha256(run, "live")
    assert policy_sha256(again, "reference") == policy_sha256(run, "live")


def test_a_refused_policy_changes_nothing(tmp_path: Path) -> None:
    world = world_of(tiny_modules(tmp_path))
    before = {name: p.clone() for name, p in world.transformer.named_parameters()}
    good = f"{THEIRS[0]}.delta.bias"
    with pytest.raises(InputError, match="1 keys do not fit"):
        world.apply_policy({good: torch.ones(16), "nonsense": torch.zeros(())}, "policy")
    assert all(torch.equal(before[name], p) for name, p in world.transformer.named_parameters())
