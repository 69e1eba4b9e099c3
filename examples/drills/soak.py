"""Soak: arena's stage A under everything at once for a given time must end as if left alone.

A round trains one run with the judge `openai` against a judge server on the loopback interface

* that refuses, breaks off, hangs and answers nonsense (`python -m stateplay_rl.arena.serve`), and is itself shot;
* while the training is shot with SIGKILL at random moments;
* and some of its lives may write no file beyond a small size, as under a quota, or find the disk full at a random
  moment (with `--disk`, a folder on a small file system of its own): these must end with exit code 5.

When the time is over the last life is left alone. A run that is finished before that is followed by another round.

Then an undisturbed run is trained on the very answers that the soaked run ended with (judge `replay`: a group in doubt
stays without scores in both). Policies, consumed conditions, latents and scores must be equal to the byte, no group may
have been paid twice, and no half-written file may be left.

    mount -t tmpfs -o size=2g tmpfs small
    python examples/drills/soak.py --out soak --minutes 60 --conditions 96 --disk small

Writes `soak/soak.json` and exits with 4 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from stateplay_rl.arena.clips import METADATA_FILE, write_clips
from stateplay_rl.checks.kill_drill import half_files, kill_family
from stateplay_rl.checks.run_results import consumed, run_results
from stateplay_rl.config.verify import InstallConfig
from stateplay_rl.errors import EXIT_CHECK, EXIT_OUTSIDE
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import OutputDirectory, is_sealed
from stateplay_rl.stores.requests import read_attempts
from stateplay_rl.stores.scores import ScoreTable
from stateplay_rl.stores.segments import list_segments

KEY = "sk-soak-0123456789"
FAULTS = ("--rate-limit", "0.1", "--retry-after", "0", "--error", "0.1", "--reset", "0.05", "--malformed", "0.1",
          "--timeout", "0.03", "--hang", "3", "--delay", "0.8")  # fmt: skip
QUOTA_BYTES = (2_000, 400_000)
"""Largest file that a life under quota may write: between a line of a log and a checkpoint."""
FULL_DISK_BYTES = (0, 1_000_000)
"""What a disk that fills up has left."""
MOST_LIVES_PER_CONDITION = 15
COUNTED = ("lives", "kills", "quota_ends", "full_disk_ends", "server_kills", "in_doubt", "failed")


@dataclass
class Server:
    """The judge server as a process on one port for all its lives."""

    root: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    starts: int = 0

    def start(self) -> None:
        """Start it, on the port that it had; returns once it listens."""
        port_file = self.root / "port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "stateplay_rl.arena.serve", "--port", str(self.port)]
        command += ["--port-file", str(port_file), "--log", str(self.root / "server.jsonl"), *FAULTS]
        with (self.root / "server.txt").open("ab") as log:
            self.process = subprocess.Popen([*command, "--seed", str(self.starts)], stdout=log, stderr=log)
        self.starts += 1
        while not port_file.is_file() or not port_file.read_text().strip():
            if self.process.poll() is not None:
                sys.exit(f"the judge server does not start, see {self.root / 'server.txt'}")
            time.sleep(0.05)
        self.port = int(port_file.read_text())

    def stop(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Disk:
    """A small file system that can be filled up."""

    folder: Path

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def fill(self, left_bytes: int) -> None:
        """Take all but `left_bytes`."""
        with self._ballast.open("wb") as file:
            while (free := shutil.disk_usage(self.folder).free) > left_bytes:
                with suppress(OSError):  # the run wrote meanwhile: measure again
                    os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size + free - left_bytes)

    def empty(self) -> None:
        """Give it back."""
        self._ballast.unlink(missing_ok=True)


@dataclass
class Round:
    """One soaked run and what it went through."""

    number: int
    kills: int = 0
    quota_ends: int = 0
    full_disk_ends: int = 0
    server_kills: int = 0
    lives: int = 0
    in_doubt: int = 0
    failed: int = 0
    attempts: dict[str, int] = field(default_factory=dict)
    results_compared: int = 0
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Soak:
    """Inputs that all rounds share."""

    root: Path
    conditions: int
    per_batch: int
    longest_life_seconds: float
    disk: Disk | None
    until: float

    def command(self, out: Path, seed: int, *more: str) -> list[str]:
        """Command line of one (re)start."""
        settings = (
            f"stage_conditions={self.conditions}",
            f"conditions_per_batch={self.per_batch}",
            "sampling.candidates=4",
            "sampling.steps=2",
            "sampling.candidates_per_call=4",
            "optimizer.samples_per_step=8",
            "optimizer.learning_rate_transition=1e-3",
            "heldout.conditions=0",
            f"encoded={self.root / 'encoded'}",
            "tracker=none",
            "threads=1",
            "judging.retry_seconds=0.5",
            f"seed={seed}",
        )
        sets = [part for value in (*settings, *more) for part in ("--set", value)]
        place = ["--out", str(out), "--audit", str(self.root / "audit")]
        return [
            sys.executable,
            "-m",
            "stateplay_rl",
            "train-nft",
            str(self.root / "conditions"),
            *place,
            "--quiet",
            *sets,
        ]


def prepare(root: Path, conditions: int) -> None:
    """Clips, audit and conditions of arena."""
    root.mkdir(parents=True)
    write_clips(root / "clips", conditions + 8, seed=5)
    csv = root / "clips" / METADATA_FILE
    made = ("--csv", csv, "--preset", "arena", "--heldout", 4, "--workers", 1, "--out", root / "conditions")
    for arguments in (
        ("audit-ckpt", "--world", "arena", "--out", root / "audit", "-q"),
        ("build-conditions", *made, "-q"),
    ):
        subprocess.run([sys.executable, "-m", "stateplay_rl", *map(str, arguments)], check=True)


def soak_one(soak: Soak, server: Server, draws: random.Random, number: int) -> Round:
    """One run through all of it, then its undisturbed twin."""
    found, began = Round(number), time.monotonic()
    logs = soak.root / f"round-{number}"
    logs.mkdir()
    folder = logs if soak.disk is None else soak.disk.folder / logs.name
    folder.mkdir(exist_ok=True)
    judge = (
        "judge.name=openai",
        f"judge.base_url=http://127.0.0.1:{server.port}/v1",
        f"judge.requests.folder={folder / 'requests'}",
        "judge.requests.backoff_first_seconds=0.05",
        "judge.requests.backoff_most_seconds=0.5",
        "judge.requests.read_seconds=2",
        "judge.requests.request_seconds=5",
        "judge.requests.tries_per_group=50",
    )
    out = folder / "soaked"
    while not is_sealed(out):
        if found.lives == MOST_LIVES_PER_CONDITION * soak.conditions:
            sys.exit(f"{out} is not finished after {found.lives} lives, see {logs / 'log.txt'}")
        command = soak.command(out, number, *judge)
        command += ["--resume"] if out.is_dir() and any(out.iterdir()) else []
        with (logs / "log.txt").open("ab") as log:
            one_life(soak, command, log, server, draws, found)
    examine(soak, folder, logs, number, found)
    found.seconds = round(time.monotonic() - began, 1)
    return found


def one_life(soak: Soak, command: list[str], log: BinaryIO, server: Server, draws: random.Random, found: Round) -> None:
    """Start or resume, and let one thing happen: nothing, a kill, a quota, a full disk, or the end of the server."""
    left_alone = time.monotonic() > soak.until
    quota = int(draws.uniform(*QUOTA_BYTES)) if draws.random() < 0.1 and not left_alone else None

    def limit() -> None:
        if quota is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (quota, quota))

    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENAI_API_KEY": KEY}
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log, preexec_fn=limit)
    found.lives += 1
    life = draws.uniform(1.0, soak.longest_life_seconds)
    full = False
    if not left_alone:
        full = disturb(soak, server, draws, life, found)
    try:
        # Who hits a wall must end by himself, with the right exit code: no shot may hide it.
        code = process.wait(timeout=None if left_alone or full or quota is not None else life)
    except subprocess.TimeoutExpired:
        kill_family(process)
        found.kills += 1
        return
    finally:
        if soak.disk is not None:
            soak.disk.empty()
    if quota is not None and code in (EXIT_OUTSIDE, -signal.SIGXFSZ):
        found.quota_ends += 1
    elif full and code == EXIT_OUTSIDE:
        found.full_disk_ends += 1
    elif code != 0:
        sys.exit(f"exit code {code} of life {found.lives} (quota {quota}, full disk {full}), see {log.name}")


def disturb(soak: Soak, server: Server, draws: random.Random, life: float, found: Round) -> bool:
    """End the server or fill the disk at a random moment, or do neither; returns whether the disk is full now."""
    kind = draws.random()
    if kind < 0.3:
        time.sleep(draws.uniform(0, life))
        server.stop()
        found.server_kills += 1
        time.sleep(draws.uniform(0, 1))
        server.start()
    elif kind < 0.45 and soak.disk is not None:
        time.sleep(draws.uniform(0, life))
        soak.disk.fill(int(draws.uniform(*FULL_DISK_BYTES)))
        return True
    return False


def examine(soak: Soak, folder: Path, logs: Path, number: int, found: Round) -> None:
    """Train the undisturbed twin on the soaked run's answers and compare."""
    soaked, twin = folder / "soaked", logs / "undisturbed"
    (segment,) = list_segments(soaked)
    table = ScoreTable.read(segment.scores_path)
    found.in_doubt = sum(group.status == "in_doubt" for group in table)
    found.failed = sum(group.status == "failed" for group in table)
    replayed = logs / "scores"
    with OutputDirectory.open(
        replayed, schema="scores", version=layout.SCHEMAS["scores"], command="soak", config=InstallConfig(),
        inputs={}, resume=False, overwrite=False,
    ) as directory:  # fmt: skip
        directory.hasher.record(replayed / layout.SCORES, table.write(replayed / layout.SCORES))
        directory.seal()
    judge = ("judge.name=replay", f"judge.scores={replayed}")
    with (logs / "log.txt").open("ab") as log:
        subprocess.run(soak.command(twin, number, *judge), check=True, stdout=log, stderr=log)
    found.differences += compare(soaked, twin, found)
    found.differences += [f"half-written {path}" for path in half_files(soaked)]
    found.differences += paid_twice(folder / "requests", found)


def compare(soaked: Path, twin: Path, found: Round) -> list[str]:
    """Policies, latents and conditions; what names the judge or its requests differs by nature."""
    left, right = (
        {name: value for name, value in run_results(run).items() if not name.endswith(".jsonl") and name != "ledger"}
        for run in (soaked, twin)
    )
    found.results_compared = len(left)
    wrong = [name for name in sorted({*left, *right}) if left.get(name) != right.get(name)]
    if consumed(soaked) != consumed(twin):
        wrong.append("consumed conditions")
    scores = [
        {group.group_id: group.scores for group in ScoreTable.read(list_segments(run)[0].scores_path)}
        for run in (soaked, twin)
    ]
    return wrong if scores[0] == scores[1] else [*wrong, "scores"]


def paid_twice(requests: Path, found: Round) -> list[str]:
    """Requests sent again after a good answer, or after doubt: both would be paid twice."""
    attempts = sorted(read_attempts(requests), key=lambda attempt: (attempt.key, attempt.attempt))
    found.attempts = dict(Counter(f"{a.state}{'' if a.reason is None else ' without scores'}" for a in attempts))
    wrong, settled = [], set[str]()
    for attempt in attempts:
        if attempt.key in settled:
            wrong.append(f"request {attempt.request_id} was sent although its group was settled")
        if attempt.state == "in_doubt" or (attempt.state == "answered" and attempt.reason is None):
            settled.add(attempt.key)
    return wrong


def main() -> None:
    """Parse, soak, say what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="disturb, and begin rounds, until so long has passed"
    )
    parser.add_argument("--rounds", type=int, default=None, help="at most so many rounds")
    parser.add_argument("--conditions", type=int, default=12)
    parser.add_argument("--per-batch", type=int, default=4)
    parser.add_argument("--longest-life", type=float, default=25.0, help="seconds after which a life is killed")
    parser.add_argument("--disk", type=Path, default=None, help="empty folder on a small file system for the runs")
    parser.add_argument("--seed", type=int, default=11)
    options = parser.parse_args()
    began, draws = time.monotonic(), random.Random(options.seed)
    root = options.out.absolute()
    prepare(root, options.conditions)
    disk = None if options.disk is None else Disk(options.disk.absolute())
    until = began + 60 * options.minutes
    soak = Soak(root, options.conditions, options.per_batch, options.longest_life, disk, until)
    server, rounds = Server(soak.root), list[Round]()
    server.start()
    try:
        while time.monotonic() < until and len(rounds) != options.rounds:
            rounds.append(soak_one(soak, server, draws, len(rounds)))
            record = {"seed": options.seed, "minutes": round((time.monotonic() - began) / 60, 2)}
            text = json.dumps({**record, "rounds": [asdict(found) for found in rounds]}, indent=1)
            (soak.root / "soak.json").write_text(text + "\n")
    finally:
        server.stop()
    wrong = [f"round {found.number}: {text}" for found in rounds for text in found.differences]
    totals = {name: sum(getattr(found, name) for found in rounds) for name in COUNTED}
    print(f"{len(rounds)} runs, {totals}: " + ("all equal" if not wrong else f"{len(wrong)} WRONG: {wrong[:5]}"))
    sys.exit(EXIT_CHECK if wrong or not rounds else 0)


if __name__ == "__main__":
    main()
