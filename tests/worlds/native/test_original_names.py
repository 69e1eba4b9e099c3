"""The original Wan files' names: golden weights load by their own names and give the golden outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native.original_names import (
    text_from_original,
    text_to_original,
    vae_from_original,
    vae_to_original,
)
from stateplay_rl.worlds.native.text import TextArchitecture, build_text_model, encode_tokens
from stateplay_rl.worlds.native.vae import VaeArchitecture, VideoVae
from stateplay_rl.worlds.native.weight_files import list_tensors, stream
from stateplay_rl.worlds.native.weights import load_exactly

GOLDEN = Path(__file__).parents[2] / "golden"


def golden_vae(weights: dict[str, torch.Tensor], slots_per_call: int = 1) -> VideoVae:
    config = json.loads((GOLDEN / "vae_config.json").read_text())
    io = load_file(GOLDEN / "vae_io.safetensors")
    vae = VideoVae(
        VaeArchitecture(
            base_dim=config["dim"],
            decoder_base_dim=config["dec_dim"],
            z_dim=config["z_dim"],
            dim_mult=tuple(config["dim_mult"]),
            num_res_blocks=config["num_res_blocks"],
            temporal_downsample=tuple(config["temporal_downsample"]),
            patch_size=config["patch_size"],
            slots_per_call=slots_per_call,
            latents_mean=tuple(io["mean"].tolist()),
            latents_std=tuple(io["std"].tolist()),
        )
    )
    vae.load_weights(weights, "golden")
    vae.prepare_for_inference(torch.float32, torch.device("cpu"))
    return vae


@pytest.mark.parametrize(("slots_per_call", "fused"), [(1, False), (4, False), (1, True)])
def test_the_vae_reproduces_the_golden_vectors(slots_per_call: int, fused: bool) -> None:
    vae = golden_vae(load_file(GOLDEN / "vae_weights.safetensors"), slots_per_call)
    vae.use_fused(fused)
    io = load_file(GOLDEN / "vae_io.safetensors")
    with torch.no_grad():
        latents = vae.normalise(vae.moments(io["video"])[:, :8])
        decoded = vae.decode_pixels(io["latents"])
    for found, expected in ((latents, io["latents"]), (decoded, io["decoded"])):
        assert float((found - expected).norm() / expected.norm()) < 1e-5


def test_the_text_encoder_reproduces_the_golden_vectors() -> None:
    weights = text_from_original(load_file(GOLDEN / "text_encoder_weights.safetensors"))
    io = load_file(GOLDEN / "text_encoder_io.safetensors")
    buckets, heads = (
        32,
        weights["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"].shape[1],
    )
    assert weights["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"].shape[0] == buckets
    architecture = TextArchitecture(tokens=24, d_model=32, num_layers=2, num_heads=heads, d_kv=32 // heads, d_ff=48)
    model = build_text_model(architecture, 64)
    load_exactly(model, weights, "golden", optional=("encoder.embed_tokens.weight",))
    context = encode_tokens(model, io["ids"], io["mask"])
    assert float((context - io["context"]).norm() / io["context"].norm()) < 1e-5


def test_both_maps_are_exact_inverses() -> None:
    vae = load_file(GOLDEN / "vae_weights.safetensors")
    ours = vae_from_original(vae)
    assert len(ours) == len(vae)
    assert vae_to_original(ours, num_res_blocks=2) == vae
    text = load_file(GOLDEN / "text_encoder_weights.safetensors")
    assert text_to_original(text_from_original(text)) == text


def test_the_pickled_original_loads_as_the_safetensors_does(tmp_path: Path) -> None:
    weights = load_file(GOLDEN / "vae_weights.safetensors")
    torch.save(weights, tmp_path / "Wan2.2_VAE.pth")
    video = load_file(GOLDEN / "vae_io.safetensors")["video"]
    left, right = golden_vae(weights), golden_vae(dict(stream(tmp_path / "Wan2.2_VAE.pth", weights)))
    with torch.no_grad():
        assert torch.equal(left.moments(video), right.moments(video))


def test_a_pickle_with_code_in_it_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": Path("/")}, tmp_path / "bad.pth")
    with pytest.raises(InputError, match=r"bad\.pth"):
        list_tensors([tmp_path / "bad.pth"])
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(InputError, match="not a dictionary of tensors"):
        list_tensors([tmp_path / "list.pth"])


def test_unknown_keys_are_named() -> None:
    vae = load_file(GOLDEN / "vae_weights.safetensors")
    with pytest.raises(InputError, match=r"encoder\.attention\.weight"):
        vae_from_original({**vae, "encoder.attention.weight": torch.zeros(1)})
    with pytest.raises(InputError, match=r"blocks\.0\.attn\.bias"):
        text_from_original({"blocks.0.attn.bias": torch.zeros(1)})
