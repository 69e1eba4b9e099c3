"""Kill drill: a training run on arena, shot at random points again and again, must end as if nothing had happened.

An undisturbed run is made first. Then the same run is started, killed with SIGKILL after a random time, resumed, killed
again, ... until the wanted number of kills has hit; the last resume may end. A run that ends before is followed by a
new one. Weights, ledger, metrics, verdicts and groups must then be equal to the undisturbed run's, byte for byte (on
one process).

    python examples/drills/kill_drill.py --out drill --kills 30 --seed 7

Writes `drill/drill.json` and exits with 4 when anything differs. With `--processes 2` the whole group of ranks is shot;
the resumed run then uses `--resume-processes` ranks, and weights must agree to 1e-6.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from stateplay_rl.arena.clips import METADATA_FILE, write_clips
from stateplay_rl.checks.kill_drill import Drill, half_files
from stateplay_rl.checks.run_results import consumed, differences, largest_weight_difference, run_results
from stateplay_rl.checks.subprocesses import cpu_environment
from stateplay_rl.errors import EXIT_CHECK, CheckError

CLIPS, HELDOUT = 40, 4
LARGEST_DIFFERENCE = 1e-6
SHARE_OF_A_RUN = 0.5
"""A kill falls within so much of the undisturbed run's seconds: a little longer than the start and two batches of the
default sizes, so that about a third of the starts get a batch further."""


def prepare(root: Path, conditions: int, per_batch: int, processes: tuple[int, ...]) -> Drill:
    """Clips, audit and conditions of arena, and small settings."""
    root.mkdir(parents=True)
    write_clips(root / "clips", max(CLIPS, conditions + HELDOUT), seed=3)
    csv = root / "clips" / METADATA_FILE
    made = ("--csv", csv, "--preset", "arena", "--heldout", HELDOUT, "--workers", 1, "--out", root / "conditions")
    for arguments in (
        ("audit-ckpt", "--world", "arena", "--out", root / "audit", "-q"),
        ("build-conditions", *made, "-q"),
    ):
        command = [sys.executable, "-m", "stateplay_rl", *map(str, arguments)]
        subprocess.run(command, env=cpu_environment(), check=True)
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
    arguments = (
        *("train-nft", str(root / "conditions"), "--audit", str(root / "audit"), "--judge", "referee", "--quiet"),
        *(part for value in settings for part in ("--set", value)),
    )
    return Drill(arguments, root / "log.txt", processes, cpu_environment())


def main() -> None:
    """Parse, drill, compare, say what came out."""
    options = parse()
    root: Path = options.out.absolute()
    ranks = (options.processes, options.resume_processes or options.processes)
    exact = ranks == (1, 1)
    drill = prepare(root, options.conditions, options.per_batch, ranks)
    draws = random.Random(options.seed)
    lives, wrong = 0, list[str]()
    try:
        seconds = drill.run(root / "whole")
        whole = run_results(root / "whole")
        while len(drill.kills) < options.kills:
            out = root / f"killed-{lives}"
            drill.shoot(out, draws, SHARE_OF_A_RUN * seconds, options.kills - len(drill.kills))
            drill.run(out, resume=True)  # says so and ends when the run was finished between two kills
            wrong += compare(root / "whole", whole, out, exact=exact)
            lives += 1
    except CheckError as error:
        sys.exit(f"{error.what}; {error.hint}")
    result = {
        "kills": [asdict(kill) for kill in drill.kills],
        "seed": options.seed,
        "runs": lives,
        "ranks": ranks,
        "undisturbed_seconds": round(seconds, 1),
        "cpu_seconds": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime),
        "results_compared": len(whole),
        "equal": "to the byte" if exact else f"weights to {LARGEST_DIFFERENCE:g}, conditions exactly",
        "differences": wrong,
    }
    (root / "drill.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(drill.kills)} kills over {lives} runs, {len(whole)} results compared {result['equal']}: ", end="")
    print("all equal" if not wrong else f"{len(wrong)} DIFFER: {wrong[:5]}")
    sys.exit(EXIT_CHECK if wrong else 0)


def parse() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--conditions", type=int, default=30)
    parser.add_argument("--per-batch", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="ranks of the first start of every run")
    parser.add_argument("--resume-processes", type=int, default=None, help="ranks of every second start")
    return parser.parse_args()


def compare(reference: Path, whole: dict[str, str], out: Path, *, exact: bool) -> list[str]:
    """What differs from the undisturbed run, and what half-written files are left."""
    wrong = [f"{out.name}: half-written {path.name}" for path in half_files(out)]
    if exact:
        return wrong + [f"{out.name}: {name}" for name in differences(whole, run_results(out))]
    if consumed(reference) != consumed(out):
        wrong.append(f"{out.name}: consumed conditions")
    gap = largest_weight_difference(reference, out)
    return wrong if gap <= LARGEST_DIFFERENCE else [*wrong, f"{out.name}: weights differ by {gap:.1e}"]


if __name__ == "__main__":
    main()
