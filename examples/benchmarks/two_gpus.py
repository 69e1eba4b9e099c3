"""One batch of train-nft on several ranks, random weights of the real shapes: seconds, memory, equal rank hashes.

On two GPUs (NCCL):

    torchrun --standalone --nproc_per_node 2 examples/benchmarks/two_gpus.py --out two_gpus.json

On a CPU (gloo), small:

    ACCELERATE_USE_CPU=true torchrun --standalone --nproc_per_node 2 examples/benchmarks/two_gpus.py \
        --out two.json --worlds arena --frames 17 --steps 2

Worlds `arena` and `stateplay-5b`, modes `transition` and `coupling`. A batch is `--conditions` conditions with
`--candidates` candidates: sampled under old, decoded, then trained on with both anchors by the very code of the stage
(`Updater`), old follows live, and the ranks' live, old and moments are compared by hash. Text contexts are random: no
text encoder is loaded. Rank 0 writes the JSON file and prints a table; exit code 4 when ranks differ.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from stateplay_rl.config.rollout import SamplingConfig
from stateplay_rl.config.train_nft import OptimizerConfig, TrainNftConfig
from stateplay_rl.distributed import Processes, start_processes
from stateplay_rl.errors import EXIT_CHECK
from stateplay_rl.nft.randomness import DrawKey, generator, normal
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.stages.train_nft.objective import Objective, RealClip
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.stages.train_nft.sharding import shard_frozen
from stateplay_rl.stages.train_nft.update import Updater
from stateplay_rl.worlds.base import ConditionBatch, WorldSpec
from stateplay_rl.worlds.native.presets import preset
from stateplay_rl.worlds.native.text import TEXT_PRESETS
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
from stateplay_rl.worlds.native.vae import VAE_PRESETS, VideoVae
from stateplay_rl.worlds.native.world import NativeModules, NativeWorld, WorldHashes
from stateplay_rl.worlds.policy_bank import sha256_tensors
from stateplay_rl.worlds.sampling import sample_candidates

WORLDS, MODES = ("arena", "stateplay-5b"), ("transition", "coupling")
PIXELS = {"arena": (64, 96), "stateplay-5b": (480, 832)}
FLOAT32_MODULES = ("latent_state_rollout", "transition_predictor")
OPEN_GATE = 0.1
PROMPT_TOKENS = 24
FPS = 20.0


@dataclass
class Timer:
    """Seconds by part; the GPU's queue is emptied at both ends."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._wait()
        began = time.perf_counter()
        yield
        self._wait()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def random_world(name: str, device: torch.device, dtype: str, *, checkpointing: bool) -> NativeWorld:
    """The real classes with random weights, drawn on the device itself: the same on every rank of the same hardware."""
    sizes = preset(name)
    usual = "float32" if name == "arena" else "bfloat16"
    compute = getattr(torch, usual if dtype == "usual" else dtype)
    draws = torch.Generator(device).manual_seed(0)
    # Made on the device: buffers hold their real values, and billions of draws take seconds.
    with torch.device(device):
        transformer = LatentStateTransformer(sizes.transformer, sizes.latent_state, compute)
        tokenizer = TransitionTokenizer(sizes.tokenizer)
    for part, module in transformer.named_children():
        module.to(torch.float32 if part in FLOAT32_MODULES else compute)
    for module in (transformer, tokenizer):
        fill(module, draws)
    torch.manual_seed(0)
    vae = VideoVae(VAE_PRESETS[name])
    vae.prepare_for_inference(compute, device)
    if not VAE_PRESETS[name].latents_mean:
        channels = VAE_PRESETS[name].z_dim
        vae.set_latent_statistics(torch.zeros(channels), torch.ones(channels))
    # Text contexts are made up, so no text encoder is held.
    text = cast(Any, SimpleNamespace(model=nn.Identity()))
    height, width = PIXELS[name]
    vae_sizes = VAE_PRESETS[name]
    spec = WorldSpec(name, height, width, FPS, vae_sizes.z_dim, vae_sizes.spatial_factor, 4)
    return NativeWorld(
        spec,
        NativeModules(transformer, tokenizer, vae, text),
        WorldHashes("0" * 64, "0" * 64),
        device=device,
        compute_dtype=compute,
        checkpointing="full" if checkpointing else "off",
    )


@torch.no_grad()
def fill(module: nn.Module, draws: torch.Generator) -> None:
    """Weights of a sensible scale everywhere; coupling gates open, so that every part matters."""
    for name, parameter in module.named_parameters():
        if name.endswith("gate"):
            parameter.fill_(OPEN_GATE)
        elif name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() < 2:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, 1.0 / math.sqrt(parameter[0].numel()), generator=draws)


@dataclass
class Batch:
    """Made-up conditions and clips of a world, and the candidates that were sampled."""

    world: NativeWorld
    ids: tuple[str, ...]
    slots: int
    conditions: dict[str, ConditionBatch] = field(default_factory=dict)
    clips: dict[str, RealClip] = field(default_factory=dict)
    latents: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def prepare(self) -> None:
        """Encode a random first frame per condition; clips are random latents with their codes."""
        spec, text_sizes = self.world.spec, TEXT_PRESETS[self.world.spec.name]
        for condition_id in self.ids:
            draws = np.random.default_rng(DrawKey(0, "frame", condition=condition_id).seed())
            frame_1hwC = draws.integers(0, 256, (1, spec.frame_height, spec.frame_width, 3), dtype=np.uint8)
            first_C1HW = self.world.encode_video(frame_1hwC)
            text_1LD = normal(DrawKey(0, "text", condition=condition_id), (1, text_sizes.tokens, text_sizes.d_model))
            text_1LD[:, PROMPT_TOKENS:] = 0
            actions = draws.integers(0, 2, (1, self.slots, spec.buttons)).astype(np.float32)
            device = self.world.device
            self.conditions[condition_id] = ConditionBatch(
                (condition_id,), first_C1HW[None].to(device), torch.from_numpy(actions).to(device), text_1LD.to(device)
            )
            shape = (spec.latent_channels, self.slots, *first_C1HW.shape[-2:])
            clip = normal(DrawKey(0, "clip", condition=condition_id), shape)
            self.clips[condition_id] = RealClip(clip, self.world.transition_codes(clip[None].to(device))[0].cpu())

    def conditions_of(self, ids: Sequence[str]) -> ConditionBatch:
        """Rows of one condition a call, as training asks for them."""
        parts = [self.conditions[i] for i in ids]
        return ConditionBatch(
            tuple(ids),
            torch.cat([p.first_latent_BC1HW for p in parts]),
            torch.cat([p.action_bins_BfK for p in parts]),
            torch.cat([p.text_BLD for p in parts]),
        )


def settings(options: argparse.Namespace, mode: str) -> TrainNftConfig:
    return TrainNftConfig(
        mode=cast(Any, mode),
        stage_conditions=options.conditions,
        conditions_per_batch=options.conditions,
        sampling=SamplingConfig(candidates=options.candidates, steps=options.steps),
        optimizer=OptimizerConfig(samples_per_step=options.samples_per_step, inner_epochs=1),
    )


def roll_out(batch: Batch, config: TrainNftConfig, processes: Processes, timer: Timer) -> None:
    """Sample and decode this rank's conditions, then share the latents (a run reads them from the disk)."""
    sigmas = sampling_sigmas(config.sampling.steps, config.sampling.shift)
    mine: list[tuple[tuple[str, int], Tensor]] = []
    for condition_id, counts in processes.turns(batch.ids):
        for candidate in range(config.sampling.candidates):
            noise = [generator(DrawKey(0, "initial_noise", condition=condition_id, candidate=candidate))]
            with timer.part("sample"):
                conditions = batch.conditions[condition_id]
                drawn = sample_candidates(batch.world, conditions, policy="old", sigmas=sigmas, noise=noise)
            if counts:
                with timer.part("decode"):
                    batch.world.decode(drawn.float())
                mine.append(((condition_id, candidate), drawn[0].float().cpu()))
    with timer.part("share latents"):
        batch.latents = dict(processes.gather(mine))


def run_case(name: str, mode: str, options: argparse.Namespace, processes: Processes) -> dict[str, Any]:
    """One world in one mode."""
    device, timer = processes.device, Timer(processes.device)
    gc.collect()  # the world of the case before: its policies and closures refer to each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with timer.part("build"):
        world = random_world(name, device, options.compute_dtype, checkpointing=options.checkpointing)
        groups = world.set_mode(cast(Any, mode))
        shard_frozen(world, processes)
    config = settings(options, mode)
    slots = world.spec.latent_frames(options.frames)
    batch = Batch(world, tuple(f"c{n}" for n in range(options.conditions)), slots)
    with timer.part("encode"):
        batch.prepare()
    # Kernels are chosen and memory is taken on the first forward: not a part of the batch.
    with timer.part("warm up"):
        sample_candidates(
            world, batch.conditions[batch.ids[0]], policy="old", sigmas=sampling_sigmas(1, 5.0), noise=[generator(0)]
        )
    roll_out(batch, config, processes, timer)
    peak_rollout = peak_gib(device)
    objective = Objective(
        world,
        config,
        batch.conditions_of,
        lambda sample: batch.latents[sample.condition_id, sample.candidate],
        lambda condition_id: batch.clips[condition_id],
    )
    updater = Updater(objective, groups, config, processes)
    count = config.sampling.candidates
    samples = [Sample(f"g-{i}", i, k, k / max(count - 1, 1), slots) for i in batch.ids for k in range(count)]
    size = options.samples_per_step
    steps = [samples[start : start + size] for start in range(0, len(samples), size)]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with timer.part("train"):
        stats = updater.run(steps, 0, len(steps))
    world.policies.update_old(0.0)
    with timer.part("hash"):
        updater_hashes = hashes(world, updater)
    finite = all(math.isfinite(v) for v in stats.sums.means().values() if v is not None)
    lines = processes.gather(
        [
            {
                "rank": processes.rank,
                "seconds": {part: round(value, 3) for part, value in timer.seconds.items()},
                "peak_gib": {"rollout": peak_rollout, "train": peak_gib(device)},
                "hashes": updater_hashes,
            }
        ]
    )
    return {
        "world": name,
        "mode": mode,
        "trained": {group.name: group.count for group in groups},
        "optimizer_steps": stats.applied_steps,
        "skipped_steps": stats.skipped_steps,
        "losses": stats.sums.means(),
        "moved": world.policies.distance("live", "reference") > 0,
        "ranks": lines,
        "equal_hashes": all(line["hashes"] == lines[0]["hashes"] for line in lines),
        "finite": finite,
    }


def hashes(world: NativeWorld, updater: Updater) -> dict[str, str]:
    """Live, old and both moments."""
    state = updater.optimizer.state
    moments = {
        f"{n}/{key}": state[p][key] for n, p in enumerate(updater.parameters) for key in ("exp_avg", "exp_avg_sq")
    }
    return {
        "live": world.policies.sha256("live"),
        "old": world.policies.sha256("old"),
        "optimizer": sha256_tensors(moments),
    }


def peak_gib(device: torch.device) -> float | None:
    """Peak memory of this rank's GPU since the last reset; None on a CPU."""
    return round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if device.type == "cuda" else None


def show(results: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    print(
        f"{'world':<14}{'mode':<12}{'sample s':>9}{'decode s':>9}{'train s':>9}{'GiB roll':>9}{'GiB train':>10}  ranks"
    )
    for result in results:
        # The slowest rank decides.
        slowest = {
            part: max(rank["seconds"].get(part, 0.0) for rank in result["ranks"])
            for part in ("sample", "decode", "train")
        }
        peaks = [result["ranks"][0]["peak_gib"][part] for part in ("rollout", "train")]
        cells = "".join(f"{'-' if peak is None else format(peak, '.1f'):>{9 + n}}" for n, peak in enumerate(peaks))
        equal = "equal" if result["equal_hashes"] else "DIFFER"
        print(
            f"{result['world']:<14}{result['mode']:<12}{slowest['sample']:>9.2f}{slowest['decode']:>9.2f}"
            f"{slowest['train']:>9.2f}{cells}  {equal}"
        )
    print(
        f"a batch: {options.conditions} conditions x {options.candidates} candidates, {options.frames} frames, "
        f"{options.steps} Euler steps, {options.samples_per_step} samples a step, "
        f"checkpointing {'on' if options.checkpointing else 'off'}"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--conditions", type=int, default=3, help="3 on 2 ranks: the shares are uneven")
    parser.add_argument("--candidates", type=int, default=2)
    parser.add_argument("--samples-per-step", type=int, default=3, help="does not divide by the ranks on purpose")
    parser.add_argument("--frames", type=int, default=97)
    parser.add_argument("--steps", type=int, default=8, help="Euler steps of a candidate")
    parser.add_argument("--compute-dtype", choices=("usual", "float32", "bfloat16"), default="usual")
    parser.add_argument("--checkpointing", action="store_true", help="recompute blocks in the backward pass")
    parser.add_argument("--strategy", choices=("replicated", "sharded"), default="replicated")
    return parser.parse_args()


def main() -> None:
    """Every world in every mode; rank 0 writes and prints."""
    options = parse()
    processes = start_processes(strategy=options.strategy)
    results = [
        run_case(name, mode, options, processes)
        for name in options.worlds.split(",")
        for mode in options.modes.split(",")
    ]
    good = all(r["equal_hashes"] and r["finite"] and r["moved"] and not r["skipped_steps"] for r in results)
    if processes.is_main:
        cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        facts = {"ranks": processes.count, "gpu": cuda, "torch": torch.__version__, "strategy": options.strategy}
        shown = {name: value for name, value in vars(options).items() if name != "out"}
        value = {**facts, "settings": shown, "passed": good, "results": results}
        options.out.write_text(json.dumps(value, indent=1) + "\n")
        show(results, options)
    processes.barrier()
    sys.exit(0 if good else EXIT_CHECK)


if __name__ == "__main__":
    main()
