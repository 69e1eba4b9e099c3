"""Presets and what a checkpoint's shapes say."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native.keymap import to_training_names
from stateplay_rl.worlds.native.presets import PRESETS, TransformerSizes, preset, sizes_from_shapes
from stateplay_rl.worlds.native.transformer import LatentStateTransformer


def header_of(name):
    row = PRESETS[name]
    with torch.device("meta"):
        state = LatentStateTransformer(row.transformer, row.latent_state).state_dict()
    return {key: tuple(tensor.shape) for key, tensor in to_training_names(state).state.items()}


@pytest.mark.parametrize("name", PRESETS)
def test_sizes_come_back_from_the_shapes(name):
    header = header_of(name)
    sizes = sizes_from_shapes(header)
    assert (sizes.transformer, sizes.latent_state) == (PRESETS[name].transformer, PRESETS[name].latent_state)
    assert {"heads", "fsq_levels", "step_encoding", "visibility"} <= set(sizes.assumed)
    known = sizes_from_shapes(
        header, heads=sizes.transformer.heads, eps=1e-6, fsq_levels=(8, 8, 8), state_heads=4, coupling_heads=4
    )
    assert known.assumed == ("step_encoding", "visibility")


def test_arena_has_about_1_45_million_parameters():
    row = PRESETS["arena"]
    with torch.device("meta"):
        model = LatentStateTransformer(row.transformer, row.latent_state)
    assert 1.4e6 < sum(p.numel() for p in model.parameters()) < 1.5e6


def test_full_size_matches_the_known_widths():
    header = header_of("stateplay-5b")
    assert header["blocks.29.ffn.0.weight"] == (14336, 3072)
    assert header["action_embedders.29.weight"] == (3072, 11)
    assert header["blocks.29.latent_state_attention.q.weight"] == (256, 3072)
    assert header["blocks.29.latent_state_attention.gate"] == (1,)
    assert header["latent_state_rollout.initializer.queries"] == (4, 256)
    assert header["latent_state_rollout.output_projection.weight"] == (3072, 256)
    assert header["transition_predictor.head.weight"] == (512, 256)


def test_a_plain_backbone_has_no_latent_state():
    header = {
        key: shape
        for key, shape in header_of("arena").items()
        if "latent_state" not in key and "predictor" not in key and "action_embedders" not in key
    }
    sizes = sizes_from_shapes(header)
    assert sizes.latent_state is None
    assert sizes.transformer.buttons == 0


def test_damaged_headers_are_named():
    header = header_of("arena")
    with pytest.raises(InputError, match=r"time_embedding\.0\.weight is missing"):
        sizes_from_shapes({k: v for k, v in header.items() if k != "time_embedding.0.weight"})
    with pytest.raises(InputError, match="4 action embedders for 5 blocks"):
        sizes_from_shapes({k: v for k, v in header.items() if k != "action_embedders.4.weight"})
    with pytest.raises(InputError, match="are not 0, 1"):
        sizes_from_shapes({k: v for k, v in header.items() if not k.startswith("blocks.2.")})
    with pytest.raises(InputError, match="512 codes do not fit"):
        sizes_from_shapes(header, fsq_levels=(8, 5, 5))


@pytest.mark.parametrize(
    "changes, message",
    [({"heads": 7}, "multiple of heads"), ({"patch": (2, 2, 2)}, "temporal patch"), ({"heads": 3}, "RoPE")],
)
def test_impossible_sizes_are_refused(changes, message):
    base = {"in_channels": 4, "dim": 48, "heads": 2, "layers": 1, "ffn_dim": 8, "freq_dim": 8, "text_dim": 8}
    with pytest.raises(InputError, match=message):
        TransformerSizes(**{**base, **changes})


def test_unknown_presets_are_refused():
    with pytest.raises(InputError, match="unknown preset"):
        preset("arenas")


def test_presets_import_no_torch():
    code = "import sys, stateplay_rl.worlds.native.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
