"""The VAE wrapper against the library's own loop."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from stateplay_rl.errors import InputError, UsageError
from stateplay_rl.worlds.native.vae import VAE_PRESETS, VideoVae
from stateplay_rl.worlds.native.vae_stats import WAN22_LATENT_MEAN, WAN22_LATENT_STD
from tests.worlds.tiny import TINY_VAE

GOLDEN = Path(__file__).parents[2] / "golden"


def build(**changes: object) -> VideoVae:
    torch.manual_seed(0)
    vae = VideoVae(dataclasses.replace(TINY_VAE, **changes))
    vae.prepare_for_inference(torch.float32, torch.device("cpu"))
    return vae


def frames(count: int, batch: int = 1, size: int = 32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (batch, count, size, size, 3), dtype=np.uint8)


@pytest.mark.parametrize("slots", [1, 3, 4, 8])
@pytest.mark.parametrize("latent_frames", [1, 2, 3, 6, 9])
def test_decoding_several_slots_at_once_equals_the_librarys_loop(slots: int, latent_frames: int) -> None:
    vae = build(slots_per_call=slots)
    raw = torch.randn(2, 4, latent_frames, 4, 4, generator=torch.Generator().manual_seed(1)) * 0.02
    with torch.no_grad():
        expected = vae.model.decode(raw).sample
        ours = vae.decode_raw(raw)
    assert ours.shape == (2, 3, 4 * (latent_frames - 1) + 1, 32, 32)
    torch.testing.assert_close(ours.clamp(-1, 1), expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 5, 9, 33])
def test_encoding_several_slots_at_once_equals_the_librarys_loop(slots: int, count: int) -> None:
    vae = build(slots_per_call=slots)
    video = frames(count, batch=2)
    with torch.no_grad():
        expected = vae.model.encode(vae.pixels(torch.from_numpy(video))).latent_dist.mode()
    torch.testing.assert_close(vae.denormalise(vae.encode(video)), expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("latent_frames", [1, 2, 5, 6])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"dim_mult": (1, 2, 2)},
        {"dim_mult": (1, 2, 4, 4), "temporal_downsample": (False, True, True), "num_res_blocks": 2, "base_dim": 4},
    ],
)
def test_the_fused_way_equals_the_librarys(sizes: dict[str, object], latent_frames: int) -> None:
    """One slot, two, one whole call of several, and a rest; the last sizes are those of Wan2.2, narrower."""
    vae = build(**sizes)
    raw = torch.randn(2, 4, latent_frames, 4, 4, generator=torch.Generator().manual_seed(1)) * 0.3
    side = 4 * vae.architecture.spatial_factor
    video = vae.pixels(torch.from_numpy(frames(4 * (latent_frames - 1) + 1, batch=2, size=side)))
    with torch.no_grad():
        decoded, moments = vae.decode_raw(raw), vae.moments(video)
        vae.use_fused(True)
        assert not torch.equal(vae.decode_raw(raw), decoded)  # another order of sums: it did go the other way
        torch.testing.assert_close(vae.decode_raw(raw), decoded, rtol=0, atol=1e-5)
        torch.testing.assert_close(vae.moments(video), moments, rtol=0, atol=1e-5)


def test_the_fused_way_is_as_near_to_float32_in_bfloat16() -> None:
    exact, library, fused = (build() for _ in range(3))
    for vae in (library, fused):
        vae.prepare_for_inference(torch.bfloat16, torch.device("cpu"))
    fused.use_fused(True)
    raw = torch.randn(1, 4, 3, 4, 4, generator=torch.Generator().manual_seed(1)) * 0.3
    with torch.no_grad():
        expected = exact.decode_raw(raw)
        errors = [float((vae.decode_raw(raw).float() - expected).norm() / expected.norm()) for vae in (library, fused)]
    assert 0 < errors[1] < 1.1 * errors[0] < 0.1


def test_gradients_go_the_librarys_way() -> None:
    """The fused passes write in place: a call with gradients never meets them."""
    vae = build()
    vae.use_fused(True)
    raw = torch.ones(1, 4, 2, 4, 4, requires_grad=True)
    vae.decode_raw(raw).sum().backward()
    assert raw.grad is not None
    assert bool((raw.grad != 0).any())


def test_a_video_does_not_depend_on_its_batch() -> None:
    vae = build()
    video = frames(9, batch=5)
    latents = vae.encode(video)
    decoded = vae.decode(latents)
    for row in range(5):
        alone = vae.encode(video[row])
        assert torch.equal(alone, latents[row])
        np.testing.assert_array_equal(vae.decode(alone[None])[0], decoded[row])


def test_threads_share_one_vae() -> None:
    vae = build()
    latents = torch.randn(6, 4, 3, 4, 4, generator=torch.Generator().manual_seed(2))
    expected = [vae.decode(latents[i : i + 1]) for i in range(6)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda i: vae.decode(latents[i : i + 1]), range(6)))
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(left, right)


def test_pixels_are_cast_before_they_are_scaled() -> None:
    """In bf16, 201 is held as 201 and 2/255 as 0.0078431; scaling first would round elsewhere."""
    vae = build()
    vae.prepare_for_inference(torch.bfloat16, torch.device("cpu"))
    video = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 1, 256, 1).expand(1, 1, 1, 256, 3)
    expected = video[0, 0, 0, :, 0].to(torch.bfloat16) * (2.0 / 255.0) - 1.0
    assert torch.equal(vae.pixels(video)[0, 0, 0, 0], expected)
    scaled_first = (video[0, 0, 0, :, 0].float() * (2.0 / 255.0) - 1.0).to(torch.bfloat16)
    assert not torch.equal(expected, scaled_first)


def test_normalisation_uses_the_stored_statistics() -> None:
    vae = build()
    plain = vae.encode(frames(5))
    vae.set_latent_statistics(torch.full((4,), 0.25), torch.full((4,), 2.0))
    torch.testing.assert_close(vae.encode(frames(5)), (plain - 0.25) / 2.0)
    with pytest.raises(InputError, match="not positive"):
        vae.set_latent_statistics(torch.zeros(4), torch.zeros(4))


@pytest.mark.parametrize(
    ("video", "message"),
    [
        (frames(8)[0], "8 frames"),
        (frames(5, size=36)[0], "36x36"),
        (frames(5)[0].astype(np.float32), "float32"),
        (frames(5)[0][..., :1], r"5, 32, 32, 1"),
    ],
)
def test_what_the_library_would_cut_silently_is_refused(video: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build().encode(video)


def test_weights_round_trip_with_their_statistics() -> None:
    first = build()
    first.set_latent_statistics(torch.full((4,), 0.3), torch.full((4,), 0.7))
    exported = first.export_weights()
    assert "latents_mean" in exported
    assert "decoder.conv_in.weight" in exported
    second = VideoVae(TINY_VAE)
    second.load_weights(exported, "file")
    second.prepare_for_inference(torch.float32, torch.device("cpu"))
    assert torch.equal(first.encode(frames(5)), second.encode(frames(5)))
    del exported["latents_std"]
    with pytest.raises(InputError, match="latents_std"):
        VideoVae(TINY_VAE).load_weights(exported, "file")


def test_presets_have_the_published_statistics_and_factors() -> None:
    stats = json.loads((GOLDEN / "wan22_latent_stats.json").read_text())
    assert list(WAN22_LATENT_MEAN) == stats["mean"]
    assert list(WAN22_LATENT_STD) == stats["std"]
    real, arena = VAE_PRESETS["stateplay-5b"], VAE_PRESETS["arena"]
    assert (real.spatial_factor, real.z_dim, arena.spatial_factor, arena.z_dim) == (16, 48, 8, 16)
    with pytest.raises(UsageError, match="temporal_downsample"):
        build(temporal_downsample=(True, False))
