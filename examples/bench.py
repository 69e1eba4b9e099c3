"""Timings of the hot paths on this machine; asserts nothing. What `make bench` runs.

    python examples/bench.py [--clips 200] [--out FILE.json]

The numbers depend on what else the machine does: run it alone, with OMP_NUM_THREADS = the number of cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from stateplay_rl.arena.clips import write_clips
from stateplay_rl.arena.dataset import CLEAR_CHANGE, draw_conditions, render, simulate
from stateplay_rl.arena.referee import compare
from stateplay_rl.cli.main import main as sprl
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.worlds.base import ConditionInputs
from stateplay_rl.worlds.load import load_world
from stateplay_rl.worlds.native.world import NativeWorld
from stateplay_rl.worlds.sampling import sample_candidates
from stateplay_rl.worlds.world_files import arena_world

CANDIDATES = 4
EULER_STEPS = 5


def seconds_of(work: Callable[[], object], repeats: int) -> float:
    """Median wall-clock seconds, after one call that warms up."""
    work()
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return sorted(taken)[len(taken) // 2]


def help_seconds() -> float:
    """`sprl --help` in a new process, imports included."""
    command = [sys.executable, "-m", "stateplay_rl", "--help"]
    return seconds_of(lambda: subprocess.run(command, check=True, capture_output=True), 5)


def clips_per_second(folder: Path, clips: int) -> float:
    """`build-conditions` on arena clips with real videos, two workers."""
    write_clips(folder / "clips", clips, seed=1, workers=2)
    csv = str(folder / "clips" / "metadata_state_polish.csv")
    arguments = ["build-conditions", "--csv", csv, "--set", "preset=arena", "--heldout", "20", "--quiet"]
    started = time.perf_counter()
    if sprl([*arguments, "--set", "workers=2", "--out", str(folder / "conditions")]):
        raise SystemExit("build-conditions failed")
    return clips / (time.perf_counter() - started)


def arena_rows(world: NativeWorld) -> dict[str, float]:
    """Milliseconds of the parts of one arena group and of its training."""
    condition = draw_conditions(1, 1, minimum=CLEAR_CHANGE)[0]
    truth = simulate(condition)
    video = render(truth)
    held = condition.held_buttons.astype(np.float32)
    inputs = ConditionInputs("bench", video[0], held, condition.prompt, 9)
    batch = world.encode_conditions([inputs]).select([0] * CANDIDATES)
    sigmas = sampling_sigmas(EULER_STEPS)
    generators = [torch.Generator().manual_seed(k) for k in range(CANDIDATES)]
    latents = sample_candidates(world, batch, policy="live", sigmas=sigmas, noise=generators).float()
    sigma_B = torch.full((CANDIDATES,), 0.9)

    def train() -> None:
        with world.policies.live_window():
            world.velocity(latents, sigma_B, batch).velocity_BCfHW.square().sum().backward()

    def sample() -> None:
        sample_candidates(world, batch, policy="live", sigmas=sigmas, noise=generators)

    rows: dict[str, Callable[[], object]] = {
        f"sample {CANDIDATES} candidates, {EULER_STEPS} Euler steps": sample,
        f"decode {CANDIDATES} candidates": lambda: world.decode(latents),
        f"forward and backward, {CANDIDATES} videos": train,
        "encode one clip": lambda: world.encode_video(video),
        "simulate and render one clip": lambda: render(simulate(condition)),
        "referee, one clip": lambda: compare(video, truth),
    }
    return {name: 1000.0 * seconds_of(work, 5) for name, work in rows.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clips", type=int, default=200, help="clips for build-conditions")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON, too")
    arguments = parser.parse_args(argv)
    rows: dict[str, float] = {"sprl --help, ms": 1000.0 * help_seconds()}
    with tempfile.TemporaryDirectory() as folder:
        rows["build-conditions at 96x64, clips/s"] = clips_per_second(Path(folder), arguments.clips)
    world = load_world(arena_world())
    world.set_mode("full")
    rows.update({f"{name}, ms": value for name, value in arena_rows(world).items()})
    table = Table("what", "value", title=f"{torch.get_num_threads()} threads")
    for name, value in rows.items():
        table.add_row(name, f"{value:.1f}")
    Console().print(table)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
