"""Kill drill: a training run on arena, shot at random points again and again, must end as if nothing had happened.

An undisturbed run is made first. Then the same run is started, killed with SIGKILL after a random time, resumed, killed
again, ... until the wanted number of kills has hit; the last resume may end. Weights, ledger, metrics, verdicts and
groups must then be equal to the undisturbed run's, byte for byte (on one process).

    python examples/drills/kill_drill.py --out drill --kills 30 --seed 7

Writes `drill/drill.json` and exits with 4 when anything differs. With `--processes 2` the whole group of ranks is shot;
the resumed run then uses `--resume-processes` ranks, and weights must agree to 1e-6.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from stateplay_rl.arena.clips import METADATA_FILE, write_clips
from stateplay_rl.checks.run_results import consumed, differences, largest_weight_difference, run_results
from stateplay_rl.errors import EXIT_CHECK
from stateplay_rl.stores.manifest import is_sealed

CLIPS, HELDOUT = 40, 4
LARGEST_DIFFERENCE = 1e-6
FEWEST_SECONDS = 0.2


@dataclass
class Kill:
    """One shot: seconds after the process began, and what stood on disk."""

    seconds: float
    finished_batches: int
    groups: int


@dataclass(frozen=True)
class Drill:
    """Inputs and settings that all runs of a drill share."""

    root: Path
    settings: tuple[str, ...]

    def command(self, out: Path, processes: int, *, resume: bool) -> list[str]:
        """Command line of one (re)start."""
        launcher = [sys.executable, "-m"]
        if processes > 1:
            launcher += ["torch.distributed.run", "--standalone", "--nproc_per_node", str(processes), "-m"]
        sets = [part for value in self.settings for part in ("--set", value)]
        return [
            *launcher,
            *("stateplay_rl", "train-nft", str(self.root / "conditions"), "--out", str(out)),
            *("--audit", str(self.root / "audit"), "--judge", "referee", "--quiet"),
            *sets,
            *(["--resume"] if resume else []),
        ]

    def start(self, out: Path, processes: int, *, resume: bool) -> subprocess.Popen[bytes]:
        """Start it; what it says goes to `log.txt`."""
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        if processes > 1:
            env["ACCELERATE_USE_CPU"] = "true"
        log = (self.root / "log.txt").open("ab")
        command = self.command(out, processes, resume=resume)
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def run(self, out: Path, processes: int, *, resume: bool = False) -> float:
        """Run to the end; returns seconds."""
        began = time.monotonic()
        code = self.start(out, processes, resume=resume).wait()
        if code != 0:
            sys.exit(f"{out}: exit code {code}, see {self.root / 'log.txt'}")
        return time.monotonic() - began


def prepare(root: Path, conditions: int, per_batch: int) -> Drill:
    """Clips, audit and conditions of arena, and small settings."""
    root.mkdir(parents=True)
    write_clips(root / "clips", max(CLIPS, conditions + HELDOUT), seed=3)
    csv = root / "clips" / METADATA_FILE
    made = ("--csv", csv, "--preset", "arena", "--heldout", HELDOUT, "--workers", 1, "--out", root / "conditions")
    for arguments in (
        ("audit-ckpt", "--world", "arena", "--out", root / "audit", "-q"),
        ("build-conditions", *made, "-q"),
    ):
        subprocess.run([sys.executable, "-m", "stateplay_rl", *map(str, arguments)], check=True)
    settings = (
        f"stage_conditions={conditions}",
        f"conditions_per_batch={per_batch}",
        "sampling.candidates=3",
        "sampling.steps=2",
        "sampling.candidates_per_call=3",
        "optimizer.samples_per_step=4",
        "optimizer.learning_rate_transition=1e-3",
        "evaluation_average.decay=0.5",
        "heldout.conditions=2",
        "heldout.samples=1",
        "heldout.every_batches=3",
        f"encoded={root / 'encoded'}",
        "tracker=none",
        "threads=1",
    )
    return Drill(root, settings)


def shoot(
    drill: Drill, out: Path, draws: random.Random, longest: float, processes: list[int], kills: int
) -> list[Kill]:
    """Start, kill after a random time, resume, ... until enough kills have hit or the run has ended."""
    found: list[Kill] = []
    while len(found) < kills and not is_sealed(out):
        process = drill.start(out, processes[len(found) % len(processes)], resume=out.exists() and any(out.iterdir()))
        seconds = draws.uniform(FEWEST_SECONDS, longest)
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            for pid in family(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()
            batches = len(list((out / "checkpoints").glob("step-*"))) - 1
            groups = len(list(out.glob("segments/*/groups/*/group.json")))
            found.append(Kill(round(seconds, 3), max(batches, 0), groups))
        else:
            if code != 0:
                sys.exit(f"{out}: exit code {code} without a kill, see {drill.root / 'log.txt'}")
    return found


def family(pid: int) -> list[int]:
    """A process and its descendants: a launcher's ranks have sessions of their own."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # gone meanwhile
        parents.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for member in found:
        found += parents.get(member, [])
    return found


def main() -> None:
    """Parse, drill, compare, say what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--conditions", type=int, default=30)
    parser.add_argument("--per-batch", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="ranks of the first start of every life")
    parser.add_argument("--resume-processes", type=int, default=None, help="ranks of every second start")
    options = parser.parse_args()

    drill = prepare(options.out.absolute(), options.conditions, options.per_batch)
    ranks = [options.processes, options.resume_processes or options.processes]
    seconds = drill.run(drill.root / "whole", options.processes)
    whole = run_results(drill.root / "whole")
    # A little longer than the start and two batches: about a third of the lives get a batch further.
    longest = 0.5 * seconds
    draws = random.Random(options.seed)
    lives, kills, wrong = 0, list[Kill](), list[str]()
    exact = ranks == [1, 1]
    while len(kills) < options.kills:
        out = drill.root / f"killed-{lives}"
        kills += shoot(drill, out, draws, longest, ranks, options.kills - len(kills))
        if not is_sealed(out):
            drill.run(out, ranks[-1], resume=True)
        wrong += compare(drill.root / "whole", whole, out, exact=exact)
        lives += 1
    result = {
        "kills": [asdict(kill) for kill in kills],
        "seed": options.seed,
        "runs": lives,
        "ranks": ranks,
        "undisturbed_seconds": round(seconds, 1),
        "results_compared": len(whole),
        "equal": "to the byte" if exact else f"weights to {LARGEST_DIFFERENCE:g}, conditions exactly",
        "differences": wrong,
    }
    (drill.root / "drill.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(kills)} kills over {lives} runs, {len(whole)} results compared {result['equal']}: ", end="")
    print("all equal" if not wrong else f"{len(wrong)} DIFFER: {wrong[:5]}")
    sys.exit(EXIT_CHECK if wrong else 0)


def compare(reference: Path, whole: dict[str, str], out: Path, *, exact: bool) -> list[str]:
    """What differs from the undisturbed run."""
    if exact:
        return [f"{out.name}: {name}" for name in differences(whole, run_results(out))]
    wrong = [] if consumed(reference) == consumed(out) else [f"{out.name}: consumed conditions"]
    gap = largest_weight_difference(reference, out)
    return wrong if gap <= LARGEST_DIFFERENCE else [*wrong, f"{out.name}: weights differ by {gap:.1e}"]


if __name__ == "__main__":
    main()
