"""Prefixes and classes of model, by names alone."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from stateplay_rl.checks.audit import classify as kinds
from stateplay_rl.checks.audit.expected import COMPONENTS, expected_tensors
from stateplay_rl.checks.audit.headers import TensorFacts, read_header
from stateplay_rl.worlds.native.prefixes import PREFIXES, strip_name

GOLDEN = Path(__file__).parents[2] / "golden"
NAME = "blocks.0.self_attn.q.weight"


def facts(*names: str) -> list[TensorFacts]:
    return [TensorFacts(name, "F32", (1,), Path("x")) for name in names]


@pytest.mark.parametrize("pair", list(itertools.permutations(PREFIXES, 2)))
def test_any_two_prefixes_in_any_order(pair: tuple[str, str]) -> None:
    assert strip_name("".join(pair) + NAME) == (NAME, "".join(pair))


def test_deep_and_repeated_nesting() -> None:
    prefix = "_orig_mod.module." * 3 + "base_model.model.pipe.dit."
    assert strip_name(prefix + NAME) == (NAME, prefix)


def test_wrappers_around_single_blocks() -> None:
    name = "module.blocks.0._orig_mod._checkpoint_wrapped_module.self_attn.q.weight"
    stripped = kinds.strip_prefixes(facts(name))
    assert [t.name for t in stripped.tensors] == [NAME]
    assert stripped.original == {NAME: name}
    assert set(stripped.removed) == {"module.", "*._checkpoint_wrapped_module._orig_mod."}


def test_every_name_of_a_wrapped_world_comes_back() -> None:
    """163 nested names once stayed random because prefixes were stripped one time only."""
    names = [t.name for t in expected_tensors("arena") if t.component == "transformer"]
    stripped = kinds.strip_prefixes(facts(*(f"_orig_mod.module.pipe.dit.{name}" for name in names)))
    assert [t.name for t in stripped.tensors] == names
    assert stripped.removed == {"_orig_mod.module.pipe.dit.": len(names)}
    assert not stripped.collisions


def test_two_names_that_become_one_are_a_collision() -> None:
    assert kinds.strip_prefixes(facts(NAME, "module." + NAME)).collisions == (NAME,)


def test_a_name_is_never_stripped_to_nothing() -> None:
    assert strip_name("module.")[0] == "module."
    assert strip_name("model.model.")[0] == "model."


@pytest.mark.parametrize(
    "names, kind",
    [
        ([NAME, "blocks.0.latent_state_attention.gate"], kinds.IMPLICIT),
        (["latent_state_rollout.transition.delta.weight"], kinds.IMPLICIT),
        ([NAME, "blocks.3.state_self_attn.q.weight"], kinds.EXPLICIT),
        (["state_encoder.0.weight"], kinds.EXPLICIT),
        (["state_encoder.0.weight", "blocks.0.latent_state_attention.gate"], kinds.MIXED),
        ([NAME, "patch_embedding.weight"], kinds.PLAIN_WAN),
        (["blocks.0.attn1.to_q.weight", "proj_out.weight"], kinds.PLAIN_WAN),
        (["blocks.0.latent_state_attention.q.lora_A.weight"], kinds.LORA),
        (["blocks.0.self_attn.q.lora_B.default.weight", "blocks.0.self_attn.q.lora_alpha"], kinds.LORA),
        (["blocks.0.self_attn.q.lora_down.weight", "blocks.0.self_attn.q.lora_up.weight"], kinds.LORA),
        (["encoder.conv1.weight", "decoder.upsamples.0.weight"], kinds.VAE),
        (["token_embedding.weight", "blocks.0.ffn.gate.0.weight"], kinds.TEXT_ENCODER),
        (["fc1.weight"], kinds.UNKNOWN),
        ([], kinds.UNKNOWN),
    ],
)
def test_classes(names: list[str], kind: str) -> None:
    assert kinds.classify(names) == kind


@pytest.mark.parametrize("preset", ["arena", "stateplay-5b"])
def test_our_own_components_are_told_apart(preset: str) -> None:
    wanted = dict(zip(COMPONENTS, (kinds.IMPLICIT, kinds.TOKENIZER, kinds.VAE, kinds.TEXT_ENCODER), strict=True))
    for component, kind in wanted.items():
        assert kinds.classify([t.name for t in expected_tensors(preset) if t.component == component]) == kind


@pytest.mark.parametrize(
    "file, kind",
    [
        ("explicit_state_checkpoint.safetensors", kinds.EXPLICIT),
        ("backbone_weights.safetensors", kinds.PLAIN_WAN),
        ("vae_weights.safetensors", kinds.VAE),
        ("text_encoder_weights.safetensors", kinds.TEXT_ENCODER),
    ],
)
def test_golden_files(file: str, kind: str) -> None:
    names = [t.name for t in read_header(GOLDEN / file).tensors]
    assert kinds.classify(names) == kind
