"""Part `vae`: reconstruction of true and glitched clips; ends with the latent statistics."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from recipe.clips import ClipFactory
from recipe.common import LineLog, Recipe, captured, cosine_rate
from stateplay_rl.worlds.native.vae import VAE_PRESETS, VideoVae

CONDITIONS = 2000
STEPS = 2900
BATCH = 32
LEARNING_RATE = 2e-3
KL_WEIGHT = 1e-6
"""Only keeps the posterior's variance finite; the deviation of the latents is normalised afterwards anyway."""


def pixel_weights(frames_NThwC: Tensor) -> Tensor:
    """[1, 1, 1, h, w] from the deviation of every pixel over clips and time: the static background counts least.

    Without it the bars (1 % of the picture) are the last thing that the VAE learns.
    """
    deviation = frames_NThwC[:512].float().mean(-1).flatten(0, 1).std(0)
    weights = (deviation / deviation.mean()).clamp(0.3, 3.0)
    return (weights / weights.mean())[None, None, None]


class VaeStep:
    """One optimizer step with everything that it draws; all tensors have fixed addresses, so it can be captured."""

    def __init__(self, recipe: Recipe, frames_NThwC: Tensor) -> None:
        torch.manual_seed(recipe.seed)
        on_gpu = recipe.device.type == "cuda"
        self.vae = VideoVae(VAE_PRESETS["arena"]).to(recipe.device)
        for module in self.vae.modules():
            if isinstance(module, torch.nn.Conv3d):
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last_3d)
        self.frames = frames_NThwC
        self.weights = pixel_weights(frames_NThwC)
        self.rate = torch.tensor(0.0, device=recipe.device)
        self.parameters = list(self.vae.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.rate,
            betas=(0.9, 0.99),
            weight_decay=0.0,
            capturable=on_gpu,
            fused=on_gpu,
        )
        self.error = torch.zeros((), device=recipe.device)

    def __call__(self) -> None:
        pick = torch.randint(len(self.frames), (BATCH,), device=self.frames.device)
        pixels = self.vae.pixels(self.frames[pick])
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
            mean, log_variance = self.vae.moments(pixels).float().chunk(2, dim=1)
            log_variance = log_variance.clamp(-20.0, 10.0)
            decoded = self.vae.decode_raw(mean + (0.5 * log_variance).exp() * torch.randn_like(mean))
        error = (decoded.float() - pixels).abs()
        kl = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).mean()
        loss = (error * self.weights).mean() + error.square().mean() + KL_WEIGHT * kl
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.error.copy_(error.detach().mean())


def part_vae(recipe: Recipe) -> None:
    """Train the VAE and write `vae.pt` (diffusers' key names and the latent statistics)."""
    factory = ClipFactory()
    log = LineLog(recipe.out / "vae.jsonl")
    chunks = factory.chunks(recipe.conditions(CONDITIONS), recipe.seed + 1)
    frames = torch.cat([torch.from_numpy(np.array(clips.frames_NThwC)).to(recipe.device) for clips in chunks])
    factory.close()
    log.write(event="clips", count=len(frames))
    step = VaeStep(recipe, frames)
    steps = recipe.steps(STEPS)
    run = captured(step, recipe.device)
    every = max(1, min(250, steps // 4))
    started = time.monotonic()
    running = torch.zeros_like(step.error)
    for number in range(steps):
        step.rate.fill_(LEARNING_RATE * cosine_rate(number, steps))
        run()
        running += step.error
        if (number + 1) % every == 0:
            l1 = running.item() / every
            running.zero_()
            log.write(step=number + 1, l1=l1, steps_per_second=(number + 1) / (time.monotonic() - started))
    vae = step.vae
    vae.set_latent_statistics(*latent_statistics(vae, frames[:2048]))
    torch.save({k: v.cpu() for k, v in vae.export_weights().items()}, recipe.out / "vae.pt")
    log.write(event="done")


@torch.no_grad()
def latent_statistics(vae: VideoVae, frames_NThwC: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation per channel of the raw posterior means."""
    parts = [vae.moments(vae.pixels(chunk))[:, : vae.architecture.z_dim] for chunk in frames_NThwC.split(64)]
    raw_NCfHW = torch.cat(parts).float()
    return raw_NCfHW.mean(dim=(0, 2, 3, 4)), raw_NCfHW.std(dim=(0, 2, 3, 4))
