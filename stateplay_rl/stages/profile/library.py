"""diffusers' own WanTransformer3DModel and AutoencoderKLWan, timed on the same inputs in the same run.

The library's transformer has no buttons and no states; it gets one timestep per token, as its Wan2.2 pipeline
gives it.

Shapes: B = 1 batch, C latent channels, f latent slots, H W latent grid, N tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from diffusers import WanTransformer3DModel
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from stateplay_rl.stages.profile.meter import Measured, Meter
from stateplay_rl.stages.profile.numerics import plain_copy
from stateplay_rl.stages.profile.record import Record
from stateplay_rl.stages.profile.workload import Workload
from stateplay_rl.worlds.native.presets import TransformerSizes
from stateplay_rl.worlds.native.world import TIMESTEPS


def compare(workload: Workload, meter: Meter, record: Record, repeats: int) -> Iterator[str]:
    """The library's models beside the world, which stays in memory: peaks hold both.

    Yields:
        what was measured, when it stands in the record.
    """
    found = record.values["library"]
    for library in (compare_transformer, compare_vae):
        parts = library(meter, workload, repeats)
        while not record.out_of_time:
            try:
                name, measured = next(parts)
            except StopIteration:
                break
            except RuntimeError as error:
                found[library.__name__] = {"failed": str(error).splitlines()[0]}
                break
            found[name] = asdict(measured)
            yield name
        parts.close()
    torch.compiler.reset()
    meter.release()


def compare_vae(meter: Meter, workload: Workload, repeats: int) -> Generator[tuple[str, Measured]]:
    """The library's decode and encode, weights as it keeps them."""
    world = workload.world
    vae: Any = plain_copy(world.modules.vae, world.compute_dtype).model
    latents = workload.clean_BCfHW.to(world.compute_dtype)
    video = world.modules.vae.pixels(torch.from_numpy(workload.video_ThwC[None]))
    with torch.no_grad():
        yield "decode", meter.measure(lambda: vae.decode(latents).sample, repeats)
        yield "encode", meter.measure(lambda: vae.encode(video).latent_dist.mode(), repeats)


def compare_transformer(meter: Meter, workload: Workload, repeats: int) -> Generator[tuple[str, Measured]]:
    """The library's transformer: eager, compiled, compiled with cuDNN's attention, and that with backward."""
    model = library_transformer(workload.world.transformer.sizes, meter.device, workload.world.compute_dtype)
    inputs = _inputs(workload)

    @torch.no_grad()
    def forward() -> Tensor:
        velocity: Tensor = model(*inputs, return_dict=False)[0]
        return velocity

    def both() -> None:
        latents = inputs[0].clone().requires_grad_()
        velocity = model(latents, *inputs[1:], return_dict=False)[0]
        velocity.float().square().mean().backward()

    yield "forward, eager", meter.measure(forward, repeats)
    if not meter.on_gpu:
        return
    with _compiled(model), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        yield "forward, compiled, cuDNN", meter.measure(forward, repeats)
        yield "forward+backward, compiled, cuDNN", meter.measure(both, repeats)
        model.enable_gradient_checkpointing()
        yield "forward+backward, compiled, cuDNN, checkpointed", meter.measure(both, repeats)
    with _compiled(model):
        yield "forward, compiled", meter.measure(forward, repeats)


@contextmanager
def _compiled(model: Any) -> Iterator[None]:
    torch.compiler.reset()
    model.compile_repeated_blocks(dynamic=False)
    yield
    for block in model.blocks:
        block._compiled_call_impl = None


def library_transformer(sizes: TransformerSizes, device: torch.device, dtype: torch.dtype) -> Any:
    """diffusers' model of the same sizes with its own random weights, frozen."""
    with torch.device(device):
        model = WanTransformer3DModel(
            patch_size=sizes.patch,
            num_attention_heads=sizes.heads,
            attention_head_dim=sizes.head_dim,
            in_channels=sizes.in_channels,
            out_channels=sizes.in_channels,
            text_dim=sizes.text_dim,
            freq_dim=sizes.freq_dim,
            ffn_dim=sizes.ffn_dim,
            num_layers=sizes.layers,
            eps=sizes.eps,
        )
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model.eval().requires_grad_(False)


def _inputs(workload: Workload) -> tuple[Tensor, Tensor, Tensor]:
    """Latents, one timestep per token [1, N], text context."""
    world = workload.world
    _, _, slots, height, width = workload.noise_BCfHW.shape
    _, patch_height, patch_width = world.transformer.sizes.patch
    per_slot = (height // patch_height) * (width // patch_width)
    timesteps = (workload.sigma_B * TIMESTEPS).repeat(slots * per_slot)[None]
    timesteps[:, :per_slot] = 0
    text = workload.conditions.text_BLD.to(world.compute_dtype)
    return workload.noise_BCfHW.to(world.compute_dtype), timesteps, text
