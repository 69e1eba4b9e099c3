"""Run under a launcher with two ranks; every rank writes what it saw. Not a test by itself: see test_ranks.py."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stateplay_rl.distributed import Processes, start_processes
from stateplay_rl.errors import InputError, OutsideError
from stateplay_rl.stages.main_process import raise_together
from stateplay_rl.stages.train_nft.draws import Visit
from stateplay_rl.stages.train_nft.gradients import global_gradient
from stateplay_rl.stages.train_nft.sharding import shard_frozen
from stateplay_rl.stages.train_nft.update import Updater
from tests.stages.train_nft.helpers import Bench

TIMEOUT_MINUTES = 1.0


def bench_of(processes: Processes, mode: str = "transition") -> Bench:
    bench = Bench(mode)
    bench.nudge("live", 0.05)
    bench.updater = Updater(bench.objective, bench.groups, bench.config, processes)
    return bench


def not_a_number(processes: Processes) -> dict[str, Any]:
    """One of rank 1's samples is bad: one step of three is lost on both ranks, with the same reason."""
    bench = bench_of(processes)
    samples = bench.samples(8)
    # Calls go round robin: the second is rank 1's.
    bad = samples[1]
    if processes.rank == 1:
        bench.bad = {(bad.condition_id, bad.candidate)}
    stats = bench.updater.run([samples[:4], samples[4:6], samples[6:]], 0, 3)
    return {
        "bad": f"{bad.condition_id}/{bad.candidate}",
        "applied": stats.applied_steps,
        "skipped": stats.skipped_steps,
        "because": stats.skipped_because,
        "steps": bench.updater.optimizer_steps,
        "live": bench.world.policies.sha256("live"),
    }


def sharded(processes: Processes, mode: str) -> dict[str, Any]:
    """The same gradient with whole and with sharded frozen weights; odd numbers of calls, a condition without clip."""
    found: dict[str, Any] = {}
    for name, lockstep in (("replicated", False), ("sharded", True)):
        ranks = replace(processes, lockstep=lockstep)
        bench = bench_of(ranks, mode)
        bench.no_clip = {bench.samples()[2].condition_id}
        shard_frozen(bench.world, ranks)
        samples = bench.samples(7)
        visit = Visit(0, 0, anchors=True)
        found[name] = global_gradient(bench.objective, samples, visit, bench.parameters, ranks).flat().tolist()
        # Sampling runs under inference mode: it must leave nothing behind that training would trip over.
        with torch.inference_mode():
            bench.world.states(bench.conditions_of([samples[0].condition_id]))
        bench.updater.run([samples[:4], samples[4:]], 0, 2)
        found[f"{name} live"] = bench.world.policies.sha256("live")
        found[f"{name} export"] = sorted(bench.world.export_policy("live"))
        found[f"{name} whole"] = sum(type(p.data) is torch.Tensor for p in bench.world.transformer.parameters())
    return found


def drifted(processes: Processes) -> str:
    """Rank 1's live policy is another: both ranks must say so."""
    bench = bench_of(processes)
    if processes.rank == 1:
        bench.nudge("live", 1e-6)
    try:
        bench.updater.check_ranks_agree()
    except OutsideError as error:
        return error.what
    return "nothing"


def told(processes: Processes) -> str:
    """Rank 1 runs into bad input: rank 0 gets the same error."""
    error = InputError("clip 3 is damaged", "restore it") if processes.rank == 1 else None
    try:
        raise_together(processes, error)
    except InputError as raised:
        return raised.what
    return "nothing"


def left_alone(processes: Processes) -> str:
    """Rank 1 is gone: rank 0 stops within the timeout and says so."""
    if processes.rank == 1:
        # As a kill would: no goodbye to the other rank.
        os._exit(0)
    try:
        processes.gather([0])
    except OutsideError as error:
        return error.what
    return "nothing"


def main(out: Path) -> None:
    processes = start_processes(TIMEOUT_MINUTES)
    found: dict[str, Any] = {"nan": not_a_number(processes)}
    for mode in ("transition", "coupling"):
        found[f"sharded {mode}"] = sharded(processes, mode)
    found["drifted"] = drifted(processes)
    found["told"] = told(processes)
    (out / f"rank-{processes.rank}.json").write_text(json.dumps(found))
    found["left alone"] = left_alone(processes)
    (out / f"rank-{processes.rank}.json").write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
