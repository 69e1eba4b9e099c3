"""Part `sft`: text side, transition tokenizer, then the latent-state transformer on the glitched mixture.

Loss as in the supervised stage of the real model: flow-matching MSE (slot 0 excluded) x training weight on the
1000-step grid + 0.1 x transition cross-entropy. One difference: the rows of the display count more (`HUD_WEIGHT`).
Everything of a step happens inside one CUDA graph: at this size the launches, not the arithmetic, are what a GPU
waits for.
"""

from __future__ import annotations

import copy
import os
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recipe.clips import ClipFactory
from recipe.common import LineLog, Recipe, captured, cosine_rate
from stateplay_rl.nft.schedule import TrainingGrid, model_timestep
from stateplay_rl.worlds.native.initialise import initialise
from stateplay_rl.worlds.native.presets import preset
from stateplay_rl.worlds.native.text import (
    TEXT_PRESETS,
    TextEncoder,
    build_text_model,
    encode_tokens,
    load_tokenizer,
    train_tokenizer,
)
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
from stateplay_rl.worlds.native.vae import VAE_PRESETS, VideoVae

CONDITIONS = 100_000
TOKENIZER_STEPS = 1500
STEPS = 44_000
BATCH = 256
"""Per rank; the committed weights were trained on two ranks."""
LEARNING_RATE = 2e-3
TRANSITION_WEIGHT = 0.1
HUD_ROWS = 2
HUD_WEIGHT = 5.0
"""Bars and timer fill the two upper rows of the latent grid. A bar that is wrong by a pixel is a hundredth of the error
of one that does not move: unweighted, amounts stay blurred long after events are right (docs/decisions/006)."""
EMA_DECAY = 0.9995
SAVE_EVERY = 6000


@dataclass(frozen=True)
class EncodedClips:
    """latents [N, C, f, H, W] bf16, action bins [N, f, 11], context [U, L, D] and each clip's row in it."""

    latents: Tensor
    bins: Tensor
    contexts: Tensor
    context_of: Tensor


def load_vae(recipe: Recipe) -> VideoVae:
    """The VAE of part `vae`."""
    vae = VideoVae(VAE_PRESETS["arena"])
    vae.load_weights(torch.load(recipe.out / "vae.pt", weights_only=True), "vae.pt")
    vae.prepare_for_inference(torch.float32, recipe.device)
    return vae


def _text_side(recipe: Recipe, prompts: list[str]) -> tuple[TextEncoder, nn.Module]:
    """A word-level tokenizer of all prompts and a seeded random UMT5 encoder.

    The encoder stays random and frozen: over a closed vocabulary its outputs are distinct random features, and the
    transformer's own text projection learns to read them. It keeps the class and the code path of the real one.
    """
    file = recipe.out / ("text_tokenizer.json" if recipe.rank == 0 else f"text_tokenizer-{recipe.rank}.json")
    vocabulary = train_tokenizer(sorted(set(prompts)), file)
    torch.manual_seed(recipe.seed + 2)
    model = build_text_model(TEXT_PRESETS["arena"], vocabulary)
    return TextEncoder(TEXT_PRESETS["arena"], model, load_tokenizer(file)), model


def encode_clips(recipe: Recipe, factory: ClipFactory, log: LineLog) -> tuple[EncodedClips, nn.Module]:
    """Render, encode and bin this rank's share of the clips; the text side is built from all prompts."""
    vae = load_vae(recipe)
    latents: list[Tensor] = []
    bins: list[Tensor] = []
    prompts: list[str] = []
    share = recipe.conditions(CONDITIONS) // recipe.ranks
    for clips in factory.chunks(share, recipe.seed + 100 + recipe.rank):
        with torch.no_grad():
            for chunk in torch.from_numpy(np.array(clips.frames_NThwC)).split(250):
                moments = vae.moments(vae.pixels(chunk.to(recipe.device)))
                raw = moments[:, : vae.architecture.z_dim].float()
                latents.append(vae.normalise(raw).bfloat16())
        held_NKT = torch.from_numpy(clips.held_NTK).transpose(1, 2)
        bins.append(F.adaptive_max_pool1d(held_NKT, latents[0].shape[2]).transpose(1, 2))
        prompts.extend(clips.prompts)
    log.write(event="encoded", clips_of_this_rank=len(prompts))
    unique = _gather_prompts(recipe, sorted(set(prompts)))
    encoder, model = _text_side(recipe, unique)
    rows = {prompt: row for row, prompt in enumerate(unique)}
    contexts = [encode_tokens(model, *encoder.tokenise(unique[i : i + 512])) for i in range(0, len(unique), 512)]
    log.write(event="prompts", unique=len(unique), vocabulary=int(model.shared.weight.shape[0]))
    return (
        EncodedClips(
            torch.cat(latents),
            torch.cat(bins).to(recipe.device),
            torch.cat(contexts).to(recipe.device).clone(),
            torch.tensor([rows[p] for p in prompts], device=recipe.device),
        ),
        model,
    )


def _gather_prompts(recipe: Recipe, mine: list[str]) -> list[str]:
    if recipe.ranks == 1:
        return mine
    found: list[list[str]] = [[] for _ in range(recipe.ranks)]
    torch.distributed.all_gather_object(found, mine)
    return sorted({prompt for part in found for prompt in part})


def train_transition_tokenizer(recipe: Recipe, data: EncodedClips, log: LineLog) -> TransitionTokenizer:
    """Stage 1 of the latent variant: codes of adjacent clean latent frames; frozen afterwards."""
    torch.manual_seed(recipe.seed + 3)
    tokenizer = TransitionTokenizer(preset("arena").tokenizer)
    initialise(tokenizer, recipe.seed + 3)
    tokenizer.to(recipe.device)
    optimizer = torch.optim.AdamW(tokenizer.parameters(), lr=1e-3, weight_decay=0.0)
    steps = recipe.steps(TOKENIZER_STEPS)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * cosine_rate(step, steps)
        pick = torch.randint(len(data.latents), (BATCH,), device=recipe.device)
        loss, codes = tokenizer.training_loss(data.latents[pick].float())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 500 == 0 or step == steps - 1:
            used = len(torch.unique(codes))
            log.write(tokenizer_step=step, smooth_l1=loss.item(), codes_in_batch=used)
    if recipe.ranks > 1:
        for value in tokenizer.state_dict().values():
            torch.distributed.broadcast(value, src=0)
    return tokenizer.eval().requires_grad_(False)


def hud_weights(rows: int) -> Tensor:
    """Weights [rows, 1] of the latent grid's rows, mean 1."""
    weights = torch.ones(rows)
    weights[:HUD_ROWS] = HUD_WEIGHT
    return (weights / weights.mean())[:, None]


class SftStep:
    """One optimizer step with everything that it draws; all tensors have fixed addresses, so it can be captured."""

    def __init__(self, recipe: Recipe, data: EncodedClips, codes: Tensor) -> None:
        torch.manual_seed(recipe.seed + 4 + 1000 * recipe.rank)
        self.ranks = recipe.ranks
        sizes = preset("arena")
        on_gpu = recipe.device.type == "cuda"
        self.model = LatentStateTransformer(
            sizes.transformer, sizes.latent_state, torch.bfloat16 if on_gpu else torch.float32
        )
        initialise(self.model, recipe.seed + 4)
        self.model.to(recipe.device)
        self.ema = copy.deepcopy(self.model).requires_grad_(False)
        self.data, self.codes, self.device = data, codes, recipe.device
        grid = TrainingGrid.build()
        self.sigmas, self.weights = grid.sigmas.to(recipe.device), grid.weights.to(recipe.device)
        self.row_weights = hud_weights(data.latents.shape[3]).to(recipe.device)
        self.rate = torch.tensor(0.0, device=recipe.device)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.rate,
            betas=(0.9, 0.99),
            weight_decay=0.0,
            capturable=on_gpu,
            fused=on_gpu,
        )
        self.losses = torch.zeros(2, device=recipe.device)
        if on_gpu:
            self.model.compile_blocks()

    def losses_of(self, pick: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted flow-matching MSE and transition cross-entropy of the picked clips."""
        x0 = self.data.latents[pick].float()
        bins, text = self.data.bins[pick], self.data.contexts[self.data.context_of[pick]]
        time_index = torch.randint(len(self.sigmas), (len(pick),), device=self.device)
        sigma = self.sigmas[time_index]
        eps = torch.randn_like(x0)
        x_sigma = (1 - sigma.view(-1, 1, 1, 1, 1)) * x0 + sigma.view(-1, 1, 1, 1, 1) * eps
        x_sigma[:, :, :1] = x0[:, :, :1]
        low, tokens = self.model.state_sequence(x0[:, :, :1], bins)
        velocity = self.model(x_sigma, model_timestep(sigma), bins, text, tokens).float()
        error = (self.row_weights * (velocity - (eps - x0))[:, :, 1:].square()).flatten(1).mean(1)
        video = (self.weights[time_index] * error).mean()
        logits = self.model.transition_logits(low, bins).float()
        cross_entropy = F.cross_entropy(logits.flatten(0, -2), self.codes[pick].flatten())
        return video, cross_entropy

    def __call__(self) -> None:
        pick = torch.randint(len(self.data.latents), (BATCH,), device=self.device)
        video, cross_entropy = self.losses_of(pick)
        self.optimizer.zero_grad(set_to_none=False)
        (video + TRANSITION_WEIGHT * cross_entropy).backward()
        if self.ranks > 1:
            self._average_gradients()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.ema.parameters()), self.parameters, 1.0 - EMA_DECAY)
            self.losses.copy_(torch.stack((video.detach(), cross_entropy.detach())))

    def _average_gradients(self) -> None:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        torch.distributed.all_reduce(flat)
        pieces = (flat / self.ranks).split([g.numel() for g in gradients])
        torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(pieces, gradients, strict=True)])


def part_sft(recipe: Recipe) -> None:
    """Train tokenizer and transformer; write `sft.pt` with every weight that export needs."""
    # Forked before the GPU is touched.
    factory = ClipFactory(max(1, (os.cpu_count() or 1) // recipe.ranks))
    if recipe.ranks > 1:
        torch.distributed.init_process_group("nccl" if recipe.device.type == "cuda" else "gloo")
    log = LineLog(recipe.out / "sft.jsonl", recipe.rank)
    data, text_model = encode_clips(recipe, factory, log)
    factory.close()
    tokenizer = train_transition_tokenizer(recipe, data, log)
    codes = torch.cat([tokenizer.encode(chunk.float()) for chunk in data.latents.split(1024)])
    step = SftStep(recipe, data, codes)
    steps = recipe.steps(STEPS)
    run = captured(step, recipe.device)
    started = time.monotonic()
    running = torch.zeros_like(step.losses)
    every = max(1, min(500, steps // 4))
    for number in range(steps):
        step.rate.fill_(LEARNING_RATE * cosine_rate(number, steps))
        run()
        running += step.losses
        if (number + 1) % every == 0:
            video, cross_entropy = (running / every).tolist()
            running.zero_()
            log.write(
                step=number + 1,
                video=video,
                cross_entropy=cross_entropy,
                steps_per_second=(number + 1) / (time.monotonic() - started),
            )
        if (number + 1) % SAVE_EVERY == 0:
            _save(recipe, step, tokenizer, text_model, number + 1)
    _save(recipe, step, tokenizer, text_model, steps)
    log.write(event="done")
    if recipe.ranks > 1:
        torch.distributed.destroy_process_group()


def _save(recipe: Recipe, step: SftStep, tokenizer: nn.Module, text_model: nn.Module, steps_done: int) -> None:
    """Every weight that export needs, by rank 0."""
    if recipe.rank != 0:
        return
    state = {
        "transformer": {k: v.cpu() for k, v in step.ema.state_dict().items()},
        "tokenizer": {k: v.cpu() for k, v in tokenizer.state_dict().items()},
        "text": {k: v.cpu() for k, v in text_model.state_dict().items()},
        "text_tokenizer": (recipe.out / "text_tokenizer.json").read_text(),
        "steps": steps_done,
    }
    torch.save(state, recipe.out / "sft.pt.tmp")
    os.replace(recipe.out / "sft.pt.tmp", recipe.out / "sft.pt")
