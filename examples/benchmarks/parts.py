"""Where a video's time goes, part by part: convolutions by layout, passes over memory, chunk sizes, attention.

    python examples/benchmarks/parts.py --out parts.json

Random weights of the real shapes in bfloat16 on a GPU; `--preset arena --device cpu` runs every line at a small
size. `sprl verify profile` times the whole; this says which of several ways each part should go.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from stateplay_rl.stages.profile import trace
from stateplay_rl.stages.profile.meter import Meter
from stateplay_rl.stages.profile.numerics import plain_copy
from stateplay_rl.worlds.native import vae as vae_module
from stateplay_rl.worlds.native import vae_fused
from stateplay_rl.worlds.native.presets import preset
from stateplay_rl.worlds.native.random_world import random_spec, random_vae, sizes_of

# Frames, height, width, channels in and out of the decoder's heavy convolutions, four latent slots at once.
CONVOLUTIONS = {
    "stateplay-5b": (
        (4, 30, 52, 1024, 1024),
        (8, 60, 104, 1024, 1024),
        (16, 120, 208, 1024, 512),
        (16, 120, 208, 512, 512),
        (16, 240, 416, 512, 256),
        (16, 240, 416, 256, 256),
    ),
    "arena": ((4, 8, 12, 32, 32), (8, 16, 24, 32, 16)),
}
CHUNKS = (1, 2, 4, 8)
TERA = 1e12
STATES_PER_SLOT = 4


def timed(meter: Meter, work: Callable[[], object], repeats: int) -> dict[str, Any]:
    """Seconds and peak, or why it does not run."""
    try:
        return asdict(meter.measure(work, repeats))
    except RuntimeError as error:
        return {"failed": str(error).splitlines()[0]}


def convolutions(name: str, meter: Meter, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """Each 3x3x3 convolution channels-last and channels-first, with and without trying all of cuDNN's kernels."""
    results: dict[str, Any] = {}
    for frames, height, width, inputs, outputs in CONVOLUTIONS[name]:
        conv = nn.Conv3d(inputs, outputs, 3, device=meter.device, dtype=dtype).requires_grad_(False)
        last = torch.randn(1, frames + 2, height, width, inputs, device=meter.device).to(dtype)
        first = last.permute(0, 4, 1, 2, 3).contiguous()
        work = 54.0 * inputs * outputs * frames * height * width / TERA
        for layout, x in (("last", last.permute(0, 4, 1, 2, 3)), ("first", first)):
            weight = conv.weight.contiguous(
                memory_format=torch.channels_last_3d if layout == "last" else torch.contiguous_format
            )
            for tried in (False, True):
                if layout == "first" and tried:
                    continue
                with torch.backends.cudnn.flags(enabled=True, benchmark=tried):
                    line = timed(meter, lambda x=x, w=weight: F.conv3d(x, w, None, 1, (0, 1, 1)), repeats)
                if "seconds" in line:
                    line["tflops"] = work / line["seconds"]
                results[f"{frames}x{height}x{width} {inputs}->{outputs} {layout}, tried {tried}"] = line
        if inputs == outputs:
            results |= _as_pictures(meter, last, conv.weight, work, repeats)
        results |= _two_by_two(meter, last, conv.weight[:, :, 1], repeats)
    return results


def _as_pictures(meter: Meter, x_BThwC: Tensor, weight: Tensor, work: float, repeats: int) -> dict[str, Any]:
    """The same convolution as one of pictures whose channels are those of three frames: copies, then 2-D."""
    frames, height, width, inputs = x_BThwC.shape[1] - 2, *x_BThwC.shape[2:]
    flat = weight.permute(0, 2, 1, 3, 4).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    three = torch.cat([x_BThwC[0, n : n + frames] for n in range(3)], -1).permute(0, 3, 1, 2)
    line = timed(meter, lambda: F.conv2d(three, flat, None, padding=1), repeats)
    if "seconds" in line:
        line["tflops"] = work / line["seconds"]
    return {f"{frames}x{height}x{width} {inputs}->{weight.shape[0]} as pictures of {3 * inputs} channels": line}


def _two_by_two(meter: Meter, x_BThwC: Tensor, weight: Tensor, repeats: int) -> dict[str, Any]:
    """The upsampled convolution: one of its four phases on the small picture, and the 3x3 on the large one."""
    pictures = x_BThwC[0, 2:].permute(0, 3, 1, 2)
    frames, inputs, height, width = pictures.shape
    outputs = weight.shape[0]
    small = weight[:, :, :2, :2].contiguous(memory_format=torch.channels_last)
    results = {}
    line = timed(meter, lambda: F.conv2d(pictures, small, None, padding=1), repeats)
    if "seconds" in line:
        line["tflops"] = 8.0 * inputs * outputs * frames * height * width / TERA / line["seconds"]
    results[f"{frames}x{height}x{width} {inputs}->{outputs} 2x2"] = line
    whole = weight.contiguous(memory_format=torch.channels_last)
    line = timed(meter, lambda: F.conv2d(pictures, whole, None, padding=1), repeats)
    if "seconds" in line:
        line["tflops"] = 18.0 * inputs * outputs * frames * height * width / TERA / line["seconds"]
    results[f"{frames}x{height}x{width} {inputs}->{outputs} 3x3"] = line
    return results


def passes(name: str, meter: Meter, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """The fused passes over memory at the decoder's sizes, and the rate that they reach."""
    results: dict[str, Any] = {}
    for frames, height, width, channels, _ in CONVOLUTIONS[name]:
        rows = frames * height * width
        x = torch.randn(rows, channels, device=meter.device).to(dtype)
        out, gamma = torch.empty_like(x), torch.ones(channels, device=meter.device, dtype=dtype)
        bytes_of = {"activate": 2, "join": 3}
        for part, work in (
            ("activate", lambda x=x, g=gamma, o=out: vae_fused._run(vae_fused.activate, x, g, g, o)),
            ("join", lambda x=x, g=gamma, o=out: vae_fused._run(vae_fused.join, x, g, o)),
        ):
            line = timed(meter, work, repeats)
            if "seconds" in line:
                line["gb_per_second"] = bytes_of[part] * x.nbytes / line["seconds"] / 1e9
            results[f"{part} {rows}x{channels}"] = line
    return results


@torch.no_grad()
def whole_vae(name: str, meter: Meter, dtype: torch.dtype, frames: int, repeats: int) -> dict[str, Any]:
    """Decode and encode: the library's way, and ours by chunk size, with and without trying cuDNN's kernels."""
    spec, vae = random_spec(sizes_of(name)), random_vae(sizes_of(name).vae, meter.device, dtype)
    slots = spec.latent_frames(frames)
    shape = (1, spec.latent_channels, slots, spec.frame_height // spec.spatial_factor,
             spec.frame_width // spec.spatial_factor)  # fmt: skip
    latents = torch.randn(shape, device=meter.device)
    video = torch.rand(1, 3, frames, spec.frame_height, spec.frame_width, device=meter.device).to(dtype)
    library = plain_copy(vae, dtype)
    results: dict[str, Any] = {}
    results["decode library"] = timed(meter, lambda: library.decode_pixels(latents), repeats)
    results["decode library, its kernels"] = trace.summarise(meter, lambda: library.decode_pixels(latents))
    vae.use_fused(True)
    usual = vae_module.FUSED_SLOTS
    for chunk, tried in (*((chunk, False) for chunk in CHUNKS), (usual, True)):
        vae_module.FUSED_SLOTS = chunk
        with torch.backends.cudnn.flags(enabled=True, benchmark=tried):
            label = f"{chunk} slots, tried {tried}"
            results[f"decode {label}"] = timed(meter, lambda: vae.decode_pixels(latents), repeats)
            if chunk == usual:
                results[f"encode {label}"] = timed(meter, lambda: vae.moments(video), repeats)
    vae_module.FUSED_SLOTS = usual
    results["decode, its kernels"] = trace.summarise(meter, lambda: vae.decode_pixels(latents))
    results["encode, its kernels"] = trace.summarise(meter, lambda: vae.moments(video))
    return results


@torch.no_grad()
def block(name: str, meter: Meter, dtype: torch.dtype, frames: int, repeats: int) -> dict[str, Any]:
    """Alternatives inside a transformer block, forward only."""
    sizes, spec = preset(name).transformer, random_spec(sizes_of(name))
    slots = spec.latent_frames(frames)
    grid = (spec.frame_height // spec.spatial_factor // 2) * (spec.frame_width // spec.spatial_factor // 2)
    tokens, dim = slots * grid, sizes.dim

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=meter.device).to(dtype) * shape[-1] ** -0.5

    x, up, down = draw(tokens, dim), draw(sizes.ffn_dim, dim), draw(dim, sizes.ffn_dim)
    bias, qkv, one = draw(sizes.ffn_dim), draw(3 * dim, dim), draw(dim, dim)

    def plain(x: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, up, bias), approximate="tanh"), down)

    ways: dict[str, Callable[[], object]] = {
        "ffn, eager": lambda: plain(x),
        "ffn, compiled": torch.compile(lambda: plain(x)) if meter.on_gpu else lambda: plain(x),
        "ffn, gelu in the product": lambda: F.linear(torch._addmm_activation(bias, x, up.t(), use_gelu=True), down),
        "q, k, v apart": lambda: [F.linear(x, one) for _ in range(3)],
        "q, k, v as one product": lambda: F.linear(x, qkv),
    }
    results = {label: timed(meter, work, repeats) for label, work in ways.items()}
    results |= _attentions(meter, draw, sizes.heads, sizes.head_dim, tokens, slots, repeats)
    return results


def _attentions(
    meter: Meter, draw: Callable[..., Tensor], heads: int, width: int, tokens: int, slots: int, repeats: int
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    by_token = draw(1, tokens, heads, width).transpose(1, 2)
    by_head = by_token.contiguous()
    text = draw(1, 512, heads, width).transpose(1, 2)
    few = draw(1, tokens, 4, 64).transpose(1, 2)
    states = draw(1, STATES_PER_SLOT * slots, 4, 64).transpose(1, 2)
    index = torch.arange(slots, device=meter.device)
    visible = index.repeat_interleave(STATES_PER_SLOT) <= index.repeat_interleave(tokens // slots).unsqueeze(1)
    cases: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {
        "self, heads apart": (by_head, by_head, None),
        "self, as projected": (by_token, by_token, None),
        "text": (by_token, text, None),
        "coupling, masked": (few, states, visible),
    }
    for label, (query, key, mask) in cases.items():
        for backend in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
            if backend == "MATH" and label.startswith("self"):
                continue
            with sdpa_kernel(getattr(SDPBackend, backend)):
                results[f"attention {label}, {backend}"] = timed(
                    meter,
                    lambda q=query, k=key, m=mask: F.scaled_dot_product_attention(q, k, k, attn_mask=m),
                    repeats,
                )
    return results


def main(argv: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--preset", choices=sorted(CONVOLUTIONS), default="stateplay-5b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--frames", type=int, default=97)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    meter = Meter(torch.device(options.device))
    dtype = torch.bfloat16 if meter.on_gpu else torch.float32
    arguments = (options.preset, meter, dtype)
    results: dict[str, Any] = {}
    for part, work in (
        ("vae", lambda: whole_vae(*arguments, options.frames, 1)),
        ("convolutions", lambda: convolutions(*arguments, options.repeats)),
        ("passes", lambda: passes(*arguments, options.repeats)),
        ("block", lambda: block(*arguments, options.frames, options.repeats)),
    ):
        began = time.perf_counter()
        results[part] = work()
        for label, line in results[part].items():
            show(label, line)
        print(f"-- {part}: {time.perf_counter() - began:.0f} s", flush=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def show(label: str, line: dict[str, Any]) -> None:
    """One line a result."""
    if "kinds" in line:
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in line["kinds"].items())
        print(f"{label}: {line['seconds']:.3f} s: {shares}")
        return
    rates = ", ".join(f"{line[key]:.0f} {unit}" for key, unit in
                      (("tflops", "TFLOP/s"), ("gb_per_second", "GB/s")) if key in line)  # fmt: skip
    print(f"{label}: " + (line["failed"] if "failed" in line else f"{line['seconds'] * 1e3:.3f} ms {rates}"))


if __name__ == "__main__":
    main()
