"""The kept lists are the model's own parameters and buffers."""

from __future__ import annotations

import pytest

from stateplay_rl.checks.audit.expected import (
    ANY_SIZE,
    IMPLICIT_MODULES,
    LIST_FILE,
    ExpectedTensor,
    build_expected,
    expected_tensors,
    module_of,
)
from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native.presets import PRESETS


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_kept_lists_equal_the_modules_on_the_meta_device(preset: str) -> None:
    """Mend with: python -m stateplay_rl.checks.audit.expected."""
    assert LIST_FILE.is_file()
    assert expected_tensors(preset) == build_expected(preset)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_implicit_module_is_there(preset: str) -> None:
    assert {t.module for t in expected_tensors(preset) if t.implicit} == set(IMPLICIT_MODULES)


def test_known_sizes_of_the_real_model() -> None:
    """Coupling LoRA of rank 8 on 30 x 4 Linears has 3.19 M parameters only if the inner width is 256."""
    shapes = {t.name: t.shape for t in expected_tensors("stateplay-5b")}
    linears = [s for n, s in shapes.items() if "latent_state_attention" in n and n.endswith(".weight")]
    assert len(linears) == 120
    assert sum(8 * (rows + columns) for rows, columns in linears) == 3_194_880
    assert shapes["action_embedders.29.weight"] == (3072, 11)
    assert shapes["transition_predictor.head.weight"][0] == 512


def test_unknown_preset() -> None:
    with pytest.raises(InputError):
        expected_tensors("nothing")


@pytest.mark.parametrize(
    "expected, found, fits",
    [
        ((1,), (), True),
        ((2, 3), (2, 3), True),
        ((2, 3), (3, 2), False),
        ((2, 3), (2, 3, 1), False),
        ((ANY_SIZE, 32), (256_384, 32), True),
        ((ANY_SIZE, 32), (256_384, 64), False),
    ],
)
def test_shapes_that_fit(expected: tuple[int, ...], found: tuple[int, ...], fits: bool) -> None:
    assert ExpectedTensor("transformer", "x", expected).fits(found) is fits


def test_modules() -> None:
    assert module_of("transformer", "blocks.12.ffn.0.weight") == "blocks.*.ffn"
    assert module_of("transformer", "latent_state_rollout.transition.delta.bias") == "latent_state_rollout.transition"
    assert module_of("vae", "decoder.conv_in.weight") == "vae.decoder"
    assert module_of("vae", "quant_conv.weight") == "vae"
