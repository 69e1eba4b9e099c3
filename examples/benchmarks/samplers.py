"""Cheaper samplers held against the default one, 30 Euler steps, on arena: same conditions, same noise.

    python examples/benchmarks/samplers.py --out examples/benchmarks/results [--conditions 24]

For every sampler and step count: distance of the latents to those of 30 Euler steps and to the flow's own solution
(60 steps of order 2), PSNR and SSIM of the decoded videos against those of 30 Euler steps, the referee's scores, how
often both order two candidates of a group alike, and seconds of the processor for sampling and decoding one candidate.
Writes samplers.json and samplers.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from stateplay_rl.arena.dataset import CLEAR_CHANGE, draw_conditions, render, simulate
from stateplay_rl.arena.referee import compare
from stateplay_rl.arena.state import Trajectory
from stateplay_rl.config.rollout import SamplingConfig
from stateplay_rl.evaluation.picture import psnr, ssim
from stateplay_rl.nft.agreement import pairwise_agreement
from stateplay_rl.nft.randomness import DrawKey, generator
from stateplay_rl.nft.samplers import evaluations
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.nft.statistics import Interval, bootstrap_mean
from stateplay_rl.stages.candidates import sampling_method
from stateplay_rl.worlds.base import ConditionBatch, ConditionInputs
from stateplay_rl.worlds.load import load_world
from stateplay_rl.worlds.native.world import NativeWorld
from stateplay_rl.worlds.sampling import initial_noise, sample_candidates
from stateplay_rl.worlds.world_files import arena_world

REFERENCE, SOLUTION = ("euler", 30), ("ab2", 60)
TIE_POINTS = 2
"""Scores this near are tied: two are about half a pixel of one bar."""
PLAIN = {"euler": (5, 8, 12, 20), "ab2": (5, 8, 12, 20), "dpm2m": (5, 8, 12, 20), "unipc2": (5, 8, 12, 20)}
OTHERS: tuple[dict[str, Any], ...] = (
    *({"solver": "unipc3", "steps": steps} for steps in (5, 8, 12, 20)),
    {"steps": 30, "latents": "bfloat16"},
    *({"steps": 30, "cache": "taylor", "cache_every": every} for every in (2, 3, 5)),
    {"solver": "ab2", "steps": 12, "cache": "taylor", "cache_every": 2},
    *({"steps": 30, "cache": "firstblock", "cache_threshold": threshold} for threshold in (0.05, 0.1)),
)


def samplers() -> list[SamplingConfig]:
    """The reference first, then the solution, then all others."""
    plain = [(solver, steps) for solver, counts in PLAIN.items() for steps in counts]
    chosen = [{"solver": solver, "steps": steps} for solver, steps in (REFERENCE, SOLUTION, *plain)]
    return [SamplingConfig(**facts) for facts in (*chosen, *OTHERS)]


@dataclass
class Measured:
    """What one sampler gave; lists run over conditions, then candidates."""

    sampling: SamplingConfig
    latents: list[Tensor] = field(default_factory=list)
    to_reference: list[float] = field(default_factory=list)
    to_solution: list[float] = field(default_factory=list)
    psnr: list[float] = field(default_factory=list)
    ssim: list[float] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)
    frozen: list[list[bool]] = field(default_factory=list)
    sample_seconds: float = 0.0
    decode_seconds: float = 0.0


class Audit:
    """Every sampler on one condition after the other.

    Args:
        world: whose base policy samples.
        candidates: per condition.
    """

    def __init__(self, world: NativeWorld, candidates: int) -> None:
        self._world, self._candidates = world, candidates
        self.measured = [Measured(sampling) for sampling in samplers()]

    def look(self, index: int, condition: Any) -> None:
        """Sample, decode and compare the candidates of one condition."""
        truth = simulate(condition)
        held = condition.held_buttons.astype(np.float32)
        inputs = ConditionInputs(f"c{index}", render(truth)[0], held, condition.prompt, 9)
        batch = self._world.encode_conditions([inputs]).select([0] * self._candidates)
        keys = [DrawKey(0, "initial_noise", condition=f"c{index}", candidate=k) for k in range(self._candidates)]
        noise = initial_noise(batch, [generator(key) for key in keys])
        drawn = [self._draw(measured, batch, noise) for measured in self.measured]
        reference, solution = drawn[0], drawn[1]
        for measured, latents in zip(self.measured, drawn, strict=True):
            measured.to_reference += rms(latents, reference)
            measured.to_solution += rms(latents, solution)
        frames = [self._decode(m, x) for m, x in zip(self.measured, drawn, strict=True)]
        for measured, videos in zip(self.measured, frames, strict=True):
            self._compare(measured, videos, frames[0], truth)

    def _draw(self, measured: Measured, batch: ConditionBatch, noise: Tensor) -> Tensor:
        sampling = measured.sampling
        began = time.process_time()
        latents = sample_candidates(
            self._world,
            batch,
            policy="live",
            sigmas=sampling_sigmas(sampling.steps),
            noise=noise,
            method=sampling_method(sampling),
        )
        measured.sample_seconds += time.process_time() - began
        return latents.float()

    def _decode(self, measured: Measured, latents: Tensor) -> np.ndarray:
        began = time.process_time()
        frames = self._world.decode(latents)
        measured.decode_seconds += time.process_time() - began
        return frames

    def _compare(self, measured: Measured, videos: np.ndarray, reference: np.ndarray, truth: Trajectory) -> None:
        for video, other in zip(videos, reference, strict=True):
            if (decibels := psnr(video, other)) is not None:
                measured.psnr.append(decibels)
            measured.ssim.append(ssim(video, other))
        reports = [compare(video, truth) for video in videos]
        measured.scores.append([report.score for report in reports])
        measured.frozen.append([report.frozen_display for report in reports])


def rms(latents: Tensor, other: Tensor) -> list[float]:
    """Root mean square difference of each candidate, slot 0 left out; latents have deviation 1."""
    return [float(v) for v in (latents - other)[:, :, 1:].square().flatten(1).mean(1).sqrt()]


def row_of(measured: Measured, reference: Measured, candidates: int) -> dict[str, Any]:
    """One line of the table."""
    sampling = measured.sampling
    pairs = [
        [
            float(pairwise_agreement([[a[i], a[j]]], [[b[i], b[j]]], TIE_POINTS) or 0.0)
            for i, j in combinations(range(candidates), 2)
        ]
        for a, b in zip(reference.scores, measured.scores, strict=True)
    ]
    agreement = bootstrap_mean(pairs)
    change = bootstrap_mean(
        [[y - x for x, y in zip(a, b, strict=True)] for a, b in zip(reference.scores, measured.scores, strict=True)]
    )
    count = candidates * len(measured.scores)
    flips = np.mean(np.array(measured.frozen) != np.array(reference.frozen))
    return {
        "sampler": sampling.sampler,
        "steps": sampling.steps,
        # How often the first-block cache asks depends on the data.
        "evaluations": None if sampling.cache == "firstblock" else evaluations(sampling.steps, sampling.taylor_every),
        "cpu_seconds_sampling": round(measured.sample_seconds / count, 4),
        "cpu_seconds_in_all": round((measured.sample_seconds + measured.decode_seconds) / count, 4),
        "latent_rms_to_euler30": round(float(np.mean(measured.to_reference)), 4),
        "latent_rms_to_solution": round(float(np.mean(measured.to_solution)), 4),
        "psnr_db": round(float(np.mean(measured.psnr)), 2) if measured.psnr else None,
        "ssim": round(float(np.mean(measured.ssim)), 4),
        "score": round(float(np.mean(measured.scores)), 2),
        "score_change": round(change.mean, 2),
        "score_change_95": ends(change, 2),
        "ranking_agreement": round(agreement.mean, 3),
        "ranking_agreement_95": ends(agreement, 3),
        "frozen_verdicts_that_differ": round(float(flips), 3),
    }


def ends(interval: Interval, digits: int) -> list[float] | None:
    """Both ends; None for one condition, which leaves nothing to resample."""
    if interval.low is None or interval.high is None:
        return None
    return [round(interval.low, digits), round(interval.high, digits)]


def show(rows: Sequence[dict[str, Any]]) -> None:
    names = ("sampler", "steps", "evaluations", "cpu_seconds_in_all", "latent_rms_to_euler30", "latent_rms_to_solution")
    names += ("psnr_db", "ssim", "score", "score_change_95", "ranking_agreement", "frozen_verdicts_that_differ")
    table = Table(*names)
    for row in rows:
        table.add_row(*("" if row[name] is None else str(row[name]) for name in names))
    Console(width=220).print(table)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for samplers.json and samplers.csv")
    parser.add_argument("--conditions", type=int, default=24)
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--seed", type=int, default=31_000, help="of the conditions; training and tuning use others")
    options = parser.parse_args(argv)
    audit = Audit(load_world(arena_world()), options.candidates)
    for index, condition in enumerate(draw_conditions(options.conditions, options.seed, minimum=CLEAR_CHANGE)):
        audit.look(index, condition)
    rows = [row_of(measured, audit.measured[0], options.candidates) for measured in audit.measured]
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "settings": {name: value for name, value in vars(options).items() if name != "out"},
    }
    (options.out / "samplers.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    with (options.out / "samplers.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    show(rows)


if __name__ == "__main__":
    main()
