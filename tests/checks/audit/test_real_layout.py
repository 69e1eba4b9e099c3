"""The audit on the layouts that real machines hold: original files, shards, folders, key maps, statements."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import save_file
from safetensors.torch import load_file

from stateplay_rl.checks.audit.examine import Targets, examine
from stateplay_rl.checks.audit.expected import TEXT_ENCODER, TOKENIZER, TRANSFORMER, VAE, expected_tensors
from stateplay_rl.checks.audit.trainable import refuse_changed_files, require_trainable_audit
from stateplay_rl.config.audit import AuditConfig
from stateplay_rl.errors import CheckError, CorruptionError, InputError, UsageError
from stateplay_rl.stages.audit_ckpt import run
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.worlds.native.architecture import UNSEEN, build, read_training_config
from stateplay_rl.worlds.native.keymap import from_training_names
from stateplay_rl.worlds.native.original_names import text_to_original, vae_to_original
from stateplay_rl.worlds.native.presets import preset
from stateplay_rl.worlds.world_files import resolve_world
from tests.checks.audit.audit_world import Arrays, random_values

WriteWorld = Callable[..., Path]
SCOPED = ("latent_state", "transition_predictor", "action_embedders")
SAYS_ALL = {
    "fsq_levels": [8, 8, 8],
    "state_heads": 4,
    "coupling_heads": 4,
    "tokenizer_heads": 4,
    "step_encoding": "sinusoidal",
    "visibility": "slot_causal",
}


def tensors_of(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def user_layout(folder: Path, arrays: Mapping[str, Arrays]) -> Path:
    """The user's files: base folder with three shards and original `.pth` files, scoped checkpoint, tokenizer."""
    base = folder / "Wan2.2-TI2V-5B"
    base.mkdir(parents=True)
    transformer = arrays[TRANSFORMER]
    trained = {f"module.pipe.dit.{k}": v for k, v in transformer.items() if any(word in k for word in SCOPED)}
    save_file(trained, folder / "step-4572.safetensors")
    backbone = [k for k in transformer if not any(word in k for word in SCOPED)]
    for number in range(3):
        part = {k: transformer[k] for k in backbone[number::3]}
        save_file(part, base / f"diffusion_pytorch_model-{number + 1:05d}-of-00003.safetensors")
    vae = tensors_of(arrays[VAE])
    statistics = {name: vae.pop(name) for name in ("latents_mean", "latents_std")}
    torch.save({**vae_to_original(vae, num_res_blocks=1), **statistics}, base / "Wan2.2_VAE.pth")
    torch.save(text_to_original(tensors_of(arrays[TEXT_ENCODER])), base / "models_t5_umt5-xxl-enc-bf16.pth")
    torch.save({"model": tensors_of(arrays[TOKENIZER])}, folder / "transition_tokenizer.pt")
    (base / "README.md").write_text("not a weight file")
    return folder


def targets(folder: Path, **changes: Any) -> Targets:
    given = {"base": (folder / "Wan2.2-TI2V-5B",), "tokenizer": folder / "transition_tokenizer.pt"}
    return Targets((folder / "step-4572.safetensors",), **{**given, **changes})


def test_the_users_layout_is_complete(tmp_path: Path, arena_arrays: Mapping[str, Arrays]) -> None:
    folder = user_layout(tmp_path, arena_arrays)
    result = examine(targets(folder), scan=True)
    assert result.verdict.name == "passed", result.verdict
    assert result.inferred
    assert Counter(row.source for row in result.evidence.rows)["initialised"] == 0
    by_file = Counter(row.source_file.name for row in result.evidence.rows if row.source_file)
    assert by_file["Wan2.2_VAE.pth"] == sum(t.component == VAE for t in expected_tensors("arena"))
    assert by_file["models_t5_umt5-xxl-enc-bf16.pth"] == sum(
        t.component == TEXT_ENCODER for t in expected_tensors("arena")
    )
    row = next(r for r in result.evidence.rows if r.component == VAE and r.name == "encoder.conv_in.weight")
    assert row.source_name == "encoder.conv1.weight"
    for role, lacking in (("base", "transformer"), ("tokenizer", "transition_tokenizer")):
        less = examine(targets(folder, **{role: () if role == "base" else None}))
        assert less.verdict.name == "partial"
        assert any(lacking in text for text in less.verdict.lacking)


def test_a_missing_shard_of_the_base_is_named(tmp_path: Path, arena_arrays: Mapping[str, Arrays]) -> None:
    folder = user_layout(tmp_path, arena_arrays)
    shards = sorted((folder / "Wan2.2-TI2V-5B").glob("*.safetensors"))
    others = tuple((folder / "Wan2.2-TI2V-5B").glob("*.pth"))
    whole = examine(targets(folder, base=(*shards, *others)))
    assert whole.verdict.name == "passed", whole.verdict
    shards[1].unlink()
    for base in ((folder / "Wan2.2-TI2V-5B",), (shards[0], shards[2], *others)):
        result = examine(targets(folder, base=base))
        assert result.verdict.name == "failed"
        said = [text for text in result.verdict.failures if "diffusion_pytorch_model-00002-of-00003" in text]
        assert len(said) == 1


def test_a_world_file_that_lists_two_of_three_shards_fails(tmp_path: Path, arena_arrays: Mapping[str, Arrays]) -> None:
    names = list(arena_arrays[TRANSFORMER])
    for number in range(3):
        part = {k: arena_arrays[TRANSFORMER][k] for k in names[number::3]}
        save_file(part, tmp_path / f"step-{number + 1:05d}-of-00003.safetensors")
    listed = (tmp_path / "step-00001-of-00003.safetensors", tmp_path / "step-00003-of-00003.safetensors")
    result = examine(Targets(listed, preset="arena"))
    assert any("step-00002-of-00003.safetensors" in text for text in result.verdict.failures)


def test_a_diffusers_folder_is_a_base(tmp_path: Path, arena_arrays: Mapping[str, Arrays]) -> None:
    folder = user_layout(tmp_path, arena_arrays)
    base = tmp_path / "diffusers"
    for part in ("transformer", "vae", "text_encoder"):
        (base / part).mkdir(parents=True)
    backbone = {k: v for k, v in arena_arrays[TRANSFORMER].items() if not any(word in k for word in SCOPED)}
    save_file(from_training_names(backbone).state, base / "transformer" / "diffusion_pytorch_model.safetensors")
    save_file(arena_arrays[VAE], base / "vae" / "diffusion_pytorch_model.safetensors")
    save_file(arena_arrays[TEXT_ENCODER], base / "text_encoder" / "model.safetensors")
    result = examine(targets(folder, base=(base,)))
    assert result.verdict.name == "passed", result.verdict


def world_file(folder: Path, **changes: Any) -> Path:
    described: dict[str, Any] = {
        "name": "real",
        "preset": "arena",
        "files": {
            "checkpoint": "step-4572.safetensors",
            "base": [f"Wan2.2-TI2V-5B/{p.name}" for p in sorted((folder / "Wan2.2-TI2V-5B").glob("*.safetensors"))],
            "transition_tokenizer": "transition_tokenizer.pt",
            "vae": "Wan2.2-TI2V-5B/Wan2.2_VAE.pth",
            "text_encoder": "Wan2.2-TI2V-5B/models_t5_umt5-xxl-enc-bf16.pth",
            "text_tokenizer": "umt5-xxl",
        },
        "compute_dtype": "float32",
        "device": "cpu",
    }
    described["files"] |= changes.pop("files", {})
    (folder / "umt5-xxl").mkdir(exist_ok=True)
    (folder / "umt5-xxl" / "tokenizer.json").write_text("{}")
    (folder / "world.yaml").write_text(yaml.safe_dump({**described, **changes}))
    return folder / "world.yaml"


def test_a_world_of_the_users_layout_trains(tmp_path: Path, arena_arrays: Mapping[str, Arrays]) -> None:
    world = world_file(user_layout(tmp_path, arena_arrays))
    audit = run(AuditConfig(world=str(world)), tmp_path / "audit")
    assert audit.audit["trainable"], audit.audit["reasons"]
    roles = Counter(file["role"] for file in audit.audit["files"])
    assert roles == {"sft": 1, "base": 5, "tokenizer": 1, "text_tokenizer": 1}
    record = require_trainable_audit(audit.out, resolve_world(str(world)), "W")
    refuse_changed_files(record)
    shard = tmp_path / "Wan2.2-TI2V-5B" / "diffusion_pytorch_model-00002-of-00003.safetensors"
    tensors = load_file(shard)
    name = sorted(tensors)[0]
    save_file({k: (v.numpy() + 1 if k == name else v.numpy()) for k, v in tensors.items()}, shard)
    with pytest.raises(CheckError, match=r"00002-of-00003\.safetensors \(base\) is not among them"):
        require_trainable_audit(audit.out, resolve_world(str(world)), "W")
    with pytest.raises(CorruptionError, match="no longer the file that was audited"):
        refuse_changed_files(record)


def test_a_file_that_is_named_twice_is_listed_and_hashed_once(
    tmp_path: Path, arena_arrays: Mapping[str, Arrays]
) -> None:
    """The base folder holds the VAE and the text encoder, too."""
    world = world_file(user_layout(tmp_path, arena_arrays), files={"base": ["Wan2.2-TI2V-5B"]})
    audit = run(AuditConfig(world=str(world)), tmp_path / "audit")
    assert audit.audit["trainable"], audit.audit["reasons"]
    paths = [file["realpath"] for file in audit.audit["files"]]
    assert len(paths) == len(set(paths)) == 8
    require_trainable_audit(audit.out, resolve_world(str(world)), "W")


def test_other_inner_names_need_the_key_map(tmp_path: Path, arena_arrays: Mapping[str, Arrays]) -> None:
    theirs = {
        k.replace("latent_state_rollout.transition.", "latent_state_rollout.module_b.").replace(
            "latent_state_attention.out", "latent_state_attention.proj"
        ): v
        for k, v in arena_arrays[TRANSFORMER].items()
    }
    folder = user_layout(tmp_path, {**arena_arrays, TRANSFORMER: theirs})
    refused = run(AuditConfig(world=str(world_file(folder))), tmp_path / "a").audit
    assert refused["verdict"] == "failed"
    assert any("have no place in the model" in text and "key_map" in text for text in refused["reasons"])
    key_map = {
        "latent_state_rollout.module_b": "latent_state_rollout.transition",
        "blocks.*.latent_state_attention.proj": "blocks.*.latent_state_attention.out",
    }
    world = world_file(folder, key_map=key_map)
    audit = run(AuditConfig(world=str(world)), tmp_path / "b")
    assert audit.verdict == "passed", audit.audit["reasons"]
    name = "module.pipe.dit.blocks.0.latent_state_attention.proj.weight"
    assert audit.audit["name_map"][name] == "blocks.0.latent_state_attention.out.weight"
    with pytest.raises(CheckError, match="another description"):
        require_trainable_audit(audit.out, resolve_world(str(world_file(folder))), "W")


def test_nothing_is_on_record_for_a_real_checkpoint() -> None:
    assert build("arena", {}).assumed == ()
    assert build("stateplay-5b", {}).assumed == tuple(n for n in UNSEEN if n not in ("heads", "eps"))
    assert build("stateplay-5b", SAYS_ALL).assumed == ()


def test_a_training_config_states_what_shapes_do_not_show(tmp_path: Path) -> None:
    config = tmp_path / "train.json"
    config.write_text(json.dumps({"model": {"latent": SAYS_ALL, "dim": 3072}, "lr": 1e-5}))
    found = build("stateplay-5b", {}, config)
    assert found.assumed == ()
    assert found.stated["fsq_levels"].value == (8, 8, 8)
    assert found.stated["fsq_levels"].source == "train.json: model.latent.fsq_levels"
    config.write_text(yaml.safe_dump({"adam": {"eps": 1e-8}, "text": {"heads": 2, "num_heads": 2}}))
    assert build("stateplay-5b", {}, config).sizes == preset("stateplay-5b")
    config.write_text(yaml.safe_dump({"a": {"heads_of_state": 8}, "transition_tokenizer_sha256": "f" * 64}))
    found = build("stateplay-5b", {"state_heads": 8}, config, {"state_heads": "a.heads_of_state"})
    assert found.sizes.latent_state.state_heads == 8
    assert found.tokenizer_sha256 == "f" * 64


@pytest.mark.parametrize(
    ("content", "lines", "keys", "message"),
    [
        ({"state_heads": 8}, {"state_heads": 4}, {}, "world file says 4, train.yaml: state_heads 8"),
        ({"a": {"state_heads": 8}, "b": {"state_heads": 4}}, {}, {}, "states state_heads 2 times"),
        ({"visibility": "bidirectional"}, {}, {}, "'bidirectional'.*computes 'slot_causal' only"),
        ({}, {"step_encoding": "table"}, {}, "backend|sinusoidal"),
        ({}, {}, {"state_heads": "no.such"}, r"has no key no\.such"),
        ({"state_heads": 7}, {}, {}, "heads do not divide"),
        ({"fsq_levels": "eight"}, {}, {}, "architecture"),
    ],
)
def test_statements_that_cannot_hold(
    tmp_path: Path, content: Any, lines: Any, keys: dict[str, str], message: str
) -> None:
    config = tmp_path / "train.yaml"
    config.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=message):
        build("stateplay-5b", lines, config, keys)


def test_training_configs_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_training_config(tmp_path / "nowhere.yaml", {})
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    with pytest.raises(InputError, match="neither YAML nor JSON"):
        read_training_config(tmp_path / "broken.yaml", {})


def test_stated_levels_replace_absent_buffers(tmp_path: Path, arena_arrays: Mapping[str, Arrays]) -> None:
    """The trainer's logger leaves buffers out: a statement fills them, and the world can be trained on."""
    less = {k: v for k, v in arena_arrays[TOKENIZER].items() if not k.startswith("quantizer.")}
    folder = user_layout(tmp_path, {**arena_arrays, TOKENIZER: less})
    unstated = run(AuditConfig(world=str(world_file(folder))), tmp_path / "a").audit
    assert (unstated["verdict"], unstated["trainable"]) == ("passed", False)
    world = world_file(folder, architecture={"fsq_levels": [8, 8, 8]})
    stated = run(AuditConfig(world=str(world)), tmp_path / "b")
    assert stated.audit["trainable"], stated.audit["untrainable"]
    assert stated.audit["stated"] == {"fsq_levels": "(8, 8, 8) (world file)"}
    (tmp_path / "train.json").write_text(json.dumps({"fsq_levels": [8, 8, 8]}))
    by_config = run(
        AuditConfig(world=str(world_file(folder)), training_config=tmp_path / "train.json"), tmp_path / "c"
    ).audit
    assert by_config["trainable"]
    assert [f["role"] for f in by_config["files"]].count("training_config") == 1


def test_levels_of_the_file_against_the_description(tmp_path: Path, arena_arrays: Mapping[str, Arrays]) -> None:
    folder = user_layout(tmp_path, arena_arrays)
    world = world_file(folder, architecture={"fsq_levels": [16, 8, 4]})
    audit = run(AuditConfig(world=str(world)), tmp_path / "a").audit
    assert audit["verdict"] == "failed"
    assert any("[8, 8, 8] in the tokenizer file, [16, 8, 4] in the world description" in r for r in audit["reasons"])


def test_the_tokenizer_of_the_training_config_is_matched(tmp_path: Path, arena_arrays: Mapping[str, Arrays]) -> None:
    folder = user_layout(tmp_path, arena_arrays)
    sha256 = sha256_file(folder / "transition_tokenizer.pt")
    for recorded, verdict in ((sha256, "passed"), ("0" * 64, "failed")):
        (folder / "train.yaml").write_text(f"tokenizer_sha256: '{recorded}'\n")
        world = world_file(folder, files={"training_config": "train.yaml"})
        audit = run(AuditConfig(world=str(world)), tmp_path / verdict).audit
        assert audit["verdict"] == verdict
    assert any("was trained with tokenizer 000" in text for text in audit["reasons"])


def test_other_sizes_of_the_description_are_expected(tmp_path: Path) -> None:
    """A real checkpoint may have other latent sizes than the preset: stated, they are what is compared."""
    from stateplay_rl.checks.audit.expected import build_expected

    lines = {"coupling_width": 32, "state_dim": 32}
    described = build("arena", lines).sizes
    rng = np.random.default_rng(0)
    arrays: dict[str, Arrays] = {component: {} for component in (TRANSFORMER, TOKENIZER, VAE, TEXT_ENCODER)}
    for tensor in build_expected("arena", described):
        arrays[tensor.component][tensor.name] = random_values(tensor, rng)
    folder = user_layout(tmp_path, arrays)
    audit = run(AuditConfig(world=str(world_file(folder, architecture=lines))), tmp_path / "a")
    assert audit.verdict == "passed", audit.audit["reasons"]
    plain = run(AuditConfig(world=str(world_file(folder))), tmp_path / "b").audit
    assert any("coupling_width: the shapes say 32, the world description 64" in r for r in plain["reasons"])
    alone = run(AuditConfig(checkpoint=folder / "step-4572.safetensors"), tmp_path / "c").audit
    assert any("nearest is arena" in r and "coupling_width 32 instead of 64" in r for r in alone["reasons"])
    assert preset("arena").latent_state.coupling_width == 64


def test_error_messages_saved_as_weights(tmp_path: Path) -> None:
    for name, content in (
        ("denied", b"Access to model is restricted. You must be authenticated."),
        ("json", b'{"error": "Repository not found"}'),
        ("utf8", "Accès refusé ".encode() * 400),
    ):
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(content)
        audit = run(AuditConfig(checkpoint=path), tmp_path / f"audit-{name}").audit
        assert audit["verdict"] == "failed"
        assert "text that begins with" in audit["reasons"][0]


def test_a_training_config_alone_needs_a_checkpoint() -> None:
    with pytest.raises(UsageError, match="nothing to audit"):
        run(AuditConfig(training_config=Path("x.yaml")))
