"""One batch of train-nft on several ranks, random weights of the real shapes: seconds, memory, equal rank hashes.

On two GPUs (NCCL):

    torchrun --standalone --nproc_per_node 2 examples/benchmarks/two_gpus.py --out two_gpus.json --checkpointing \
        --steps 4 --alone transition

On a CPU (gloo), small sizes of the same structure:

    ACCELERATE_USE_CPU=true torchrun --standalone --nproc_per_node 2 examples/benchmarks/two_gpus.py \
        --out two.json --shrink --frames 17 --steps 2 --checkpointing --alone transition

Worlds `arena` and `stateplay-5b`, modes `transition` and `coupling`. A batch is `--conditions` conditions with
`--candidates` candidates: sampled under old, decoded, then trained on with both anchors by the very code of the stage
(`Updater`), old follows live, and the ranks' live, old and moments are compared by hash.

`--alone MODES`: afterwards every rank does the whole batch by itself, from the same weights. That gives the seconds of
one GPU, and how far one and several ranks end apart. Rank 0 writes the JSON file after every case and prints a table;
exit code 4 when ranks differ.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from examples.benchmarks.random_batch import Batch  # noqa: E402 - found through the line above
from stateplay_rl.config.rollout import SamplingConfig  # noqa: E402
from stateplay_rl.config.train_nft import OptimizerConfig, TrainNftConfig  # noqa: E402
from stateplay_rl.config.world import SpeedOptions  # noqa: E402
from stateplay_rl.distributed import Processes, start_processes  # noqa: E402
from stateplay_rl.errors import EXIT_CHECK  # noqa: E402
from stateplay_rl.nft.randomness import DrawKey, generator  # noqa: E402
from stateplay_rl.nft.schedule import sampling_sigmas  # noqa: E402
from stateplay_rl.stages.train_nft.draws import Visit  # noqa: E402
from stateplay_rl.stages.train_nft.gradients import global_gradient  # noqa: E402
from stateplay_rl.stages.train_nft.objective import Objective  # noqa: E402
from stateplay_rl.stages.train_nft.samples import Sample  # noqa: E402
from stateplay_rl.stages.train_nft.sharding import shard_frozen  # noqa: E402
from stateplay_rl.stages.train_nft.update import Updater, UpdateStats  # noqa: E402
from stateplay_rl.worlds.base import ParameterGroup  # noqa: E402
from stateplay_rl.worlds.native.random_world import random_world, sizes_of  # noqa: E402
from stateplay_rl.worlds.native.speed import resolve_speed  # noqa: E402
from stateplay_rl.worlds.native.world import NativeWorld  # noqa: E402
from stateplay_rl.worlds.policy_bank import sha256_tensors  # noqa: E402
from stateplay_rl.worlds.sampling import sample_candidates  # noqa: E402

WORLDS, MODES = ("arena", "stateplay-5b"), ("transition", "coupling")
WORK = ("sample", "decode", "train")
USUAL_DTYPE = {"arena": "float32", "stateplay-5b": "bfloat16"}
Weights = Mapping[str, Tensor]


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


@dataclass(frozen=True)
class Case:
    """One world in one mode on this rank, ready to work."""

    world: NativeWorld
    groups: tuple[ParameterGroup, ...]
    config: TrainNftConfig
    batch: Batch

    def samples(self) -> list[Sample]:
        """All candidates of the batch, their r evenly over 0..1."""
        count, slots = self.config.sampling.candidates, self.batch.slots
        return [Sample(f"g-{i}", i, k, k / max(count - 1, 1), slots) for i in self.batch.ids for k in range(count)]

    def updater(self, processes: Processes) -> Updater:
        """The stage's own, reading the batch from memory."""
        objective = Objective(
            self.world,
            self.config,
            self.batch.conditions_of,
            lambda sample: self.batch.latents[sample.condition_id, sample.candidate],
            lambda condition_id: self.batch.clips[condition_id],
        )
        return Updater(objective, self.groups, self.config, processes)


def settings(options: argparse.Namespace, mode: str) -> TrainNftConfig:
    return TrainNftConfig(
        mode=cast(Any, mode),
        stage_conditions=options.conditions,
        conditions_per_batch=options.conditions,
        sampling=SamplingConfig(candidates=options.candidates, steps=options.steps),
        optimizer=OptimizerConfig(samples_per_step=options.samples_per_step, inner_epochs=1),
    )


def build(name: str, mode: str, options: argparse.Namespace, processes: Processes, timer: Timer) -> Case:
    """World, made-up batch, and a first forward."""
    device, sizes = processes.device, sizes_of(name, shrink=options.shrink)
    with timer.part("build"):
        dtype = getattr(torch, options.compute_dtype or USUAL_DTYPE[name])
        recomputed = "full" if options.checkpointing else "off"
        speed = resolve_speed(SpeedOptions(), device, dtype)
        world = random_world(sizes, device, dtype, checkpointing=cast(Any, recomputed), speed=speed)
        groups = world.set_mode(cast(Any, mode))
        shard_frozen(world, processes)
    slots = world.spec.latent_frames(options.frames)
    batch = Batch(world, tuple(f"c{n}" for n in range(options.conditions)), slots, sizes.text)
    with timer.part("encode"):
        batch.prepare()
    case = Case(world, groups, settings(options, mode), batch)
    # Graphs are compiled, kernels chosen and memory taken on first calls: not a part of the batch.
    with timer.part("warm up"):
        conditions = batch.conditions[batch.ids[0]]
        drawn = sample_candidates(world, conditions, policy="old", sigmas=sampling_sigmas(1, 5.0), noise=[generator(0)])
        world.decode(drawn.float())
        first = case.samples()[0]
        batch.latents = {(first.condition_id, first.candidate): drawn[0].float().cpu()}
        updater = case.updater(processes)
        alone = replace(processes, rank=0, count=1)
        global_gradient(updater.objective, [first], Visit(0, 0, anchors=True), updater.parameters, alone)
    return case


def roll_out(case: Case, processes: Processes, timer: Timer) -> dict[tuple[str, int], Tensor]:
    """Sample and decode this rank's conditions, then share the latents (a run reads them from the disk)."""
    sampling = case.config.sampling
    sigmas = sampling_sigmas(sampling.steps, sampling.shift)
    mine: list[tuple[tuple[str, int], Tensor]] = []
    for condition_id, counts in processes.turns(case.batch.ids):
        for candidate in range(sampling.candidates):
            noise = [generator(DrawKey(0, "initial_noise", condition=condition_id, candidate=candidate))]
            with timer.part("sample"):
                conditions = case.batch.conditions[condition_id]
                drawn = sample_candidates(case.world, conditions, policy="old", sigmas=sigmas, noise=noise)
            if counts:
                with timer.part("decode"):
                    case.world.decode(drawn.float())
                mine.append(((condition_id, candidate), drawn[0].float().cpu()))
    with timer.part("share latents"):
        return dict(processes.gather(mine))


def train(case: Case, updater: Updater, timer: Timer) -> UpdateStats:
    """All optimizer steps of the batch, then old follows live."""
    samples, size = case.samples(), case.config.optimizer.samples_per_step
    steps = [samples[start : start + size] for start in range(0, len(samples), size)]
    with timer.part("train"):
        stats = updater.run(steps, 0, len(steps))
    case.world.policies.update_old(0.0)
    return stats


def run_case(name: str, mode: str, options: argparse.Namespace, processes: Processes) -> dict[str, Any]:
    """One world in one mode, on all ranks; then alone, if it is asked for."""
    timer = Timer(processes.device)
    gc.collect()  # the world of the case before: its policies and closures refer to each other
    if processes.device.type == "cuda":
        torch.cuda.empty_cache()
    case = build(name, mode, options, processes, timer)
    reset_peak(processes.device)
    case.batch.latents = roll_out(case, processes, timer)
    peak_rollout = peak_gib(processes.device)
    reset_peak(processes.device)
    updater = case.updater(processes)
    stats = train(case, updater, timer)
    peak_train = peak_gib(processes.device)
    with timer.part("hash"):
        own_hashes = hashes(case.world, updater)
    finite = all(math.isfinite(v) for v in stats.sums.means().values() if v is not None)
    moved = case.world.policies.distance("live", "reference") > 0
    facts: dict[str, Any] = {
        "rank": processes.rank,
        "seconds": rounded(timer.seconds),
        "peak_gib": {"rollout": peak_rollout, "train": peak_train},
        "hashes": own_hashes,
    }
    if mode in options.alone.split(","):
        facts["alone"] = do_alone(case, processes)
    lines = processes.gather([facts])
    return {
        "world": name,
        "mode": mode,
        "trained": {group.name: group.count for group in case.groups},
        "optimizer_steps": stats.applied_steps,
        "skipped_steps": stats.skipped_steps,
        "losses": stats.sums.means(),
        "moved": moved,
        "ranks": lines,
        "equal_hashes": all(line["hashes"] == lines[0]["hashes"] for line in lines),
        "finite": finite,
    }


def do_alone(case: Case, processes: Processes) -> dict[str, Any]:
    """The whole batch on this rank, from the same weights; and how far it ends from what all ranks made of it."""
    policies = case.world.policies
    together, start = policies.state("live"), policies.state("reference")
    for policy in ("live", "old"):
        policies.load(cast(Any, policy), start)
    alone, timer = Processes(0, 1, processes.device), Timer(processes.device)
    latents = roll_out(case, alone, timer)
    same = all(torch.equal(value, case.batch.latents[key]) for key, value in latents.items())
    train(case, case.updater(alone), timer)
    single = policies.state("live")
    gap, way = distance(together, single), distance(together, start)
    largest = max(float((value - single[name]).abs().max()) for name, value in together.items())
    return {
        "seconds": rounded(timer.seconds),
        "latents_equal": same,
        "largest_weight_difference": largest,
        "difference_over_way": gap / way if way else None,
    }


def distance(left: Weights, right: Weights) -> float:
    """Euclidean, in float64."""
    return math.sqrt(sum(float((value.double() - right[name].double()).square().sum()) for name, value in left.items()))


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


def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {part: round(value, 3) for part, value in seconds.items()}


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    """Peak memory of this rank's GPU since the last reset; None on a CPU."""
    return round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if device.type == "cuda" else None


def slowest(ranks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of the work by part; the slowest rank decides."""
    return {part: max(rank["seconds"].get(part, 0.0) for rank in ranks) for part in WORK}


def show(results: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    print(
        f"{'world':<14}{'mode':<12}{'sample s':>9}{'decode s':>9}{'train s':>9}{'GiB roll':>9}{'GiB train':>10}  ranks"
    )
    for result in results:
        ranks = result["ranks"]
        times = "".join(f"{value:>9.2f}" for value in slowest(ranks).values())
        peaks = [ranks[0]["peak_gib"][part] for part in ("rollout", "train")]
        cells = "".join(f"{'-' if peak is None else format(peak, '.1f'):>{9 + n}}" for n, peak in enumerate(peaks))
        equal = "equal" if result["equal_hashes"] else "DIFFER"
        print(f"{result['world']:<14}{result['mode']:<12}{times}{cells}  {equal}")
        if "alone" in ranks[0]:
            show_alone(ranks, options)
    print(
        f"a batch: {options.conditions} conditions x {options.candidates} candidates, {options.frames} frames, "
        f"{options.steps} Euler steps, {options.samples_per_step} samples a step, "
        f"checkpointing {'on' if options.checkpointing else 'off'}"
    )


def show_alone(ranks: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> None:
    """Times of one rank alone, and how many times faster all together were; uneven shares set the limit."""
    alone = slowest([rank["alone"] for rank in ranks])
    faster = {part: alone[part] / max(value, 1e-9) for part, value in slowest(ranks).items()}
    print(f"{'  alone':<26}" + "".join(f"{value:>9.2f}" for value in alone.values()))
    limit = options.conditions / math.ceil(options.conditions / len(ranks))
    gap = max(rank["alone"]["difference_over_way"] or 0.0 for rank in ranks)
    print(
        f"{'  times faster':<26}"
        + "".join(f"{value:>9.2f}" for value in faster.values())
        + f"  (shares allow {limit:.2f}); weights {gap:.1e} of their way apart"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--alone", default="", help="modes in which each rank then does the batch alone too")
    parser.add_argument("--shrink", action="store_true", help="small sizes of the same structure, for a CPU")
    parser.add_argument("--conditions", type=int, default=3, help="3 on 2 ranks: the shares are uneven")
    parser.add_argument("--candidates", type=int, default=2)
    parser.add_argument("--samples-per-step", type=int, default=3, help="does not divide by the ranks on purpose")
    parser.add_argument("--frames", type=int, default=97)
    parser.add_argument("--steps", type=int, default=8, help="Euler steps of a candidate")
    parser.add_argument("--compute-dtype", choices=("float32", "bfloat16"), help="default: the world's usual one")
    parser.add_argument("--checkpointing", action="store_true", help="recompute blocks in the backward pass")
    parser.add_argument("--strategy", choices=("replicated", "sharded"), default="replicated")
    options = parser.parse_args()
    if options.strategy == "sharded" and options.alone:
        parser.error("--alone needs whole weights on every rank: --strategy replicated")
    return options


def main() -> None:
    """Every world in every mode; rank 0 writes and prints."""
    options = parse()
    processes = start_processes(strategy=options.strategy)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    facts = {"ranks": processes.count, "gpu": gpu, "torch": torch.__version__, "strategy": options.strategy}
    shown = {name: value for name, value in vars(options).items() if name != "out"}
    results: list[dict[str, Any]] = []
    good = True
    for name in options.worlds.split(","):
        for mode in options.modes.split(","):
            result = run_case(name, mode, options, processes)
            results.append(result)
            good = good and all(result[fact] for fact in ("equal_hashes", "finite", "moved"))
            good = good and not result["skipped_steps"]
            if processes.is_main:
                value = {**facts, "settings": shown, "passed": good, "results": results}
                options.out.write_text(json.dumps(value, indent=1) + "\n")
    if processes.is_main:
        show(results, options)
    processes.barrier()
    sys.exit(0 if good else EXIT_CHECK)


if __name__ == "__main__":
    main()
