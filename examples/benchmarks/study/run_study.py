"""Does it help? The arena study: methods at equal candidate budgets, several seeds, on ground truth.

On one GPU or several (processes are spread over them; an arm takes a fraction of a GPU):

    python examples/benchmarks/study/run_study.py --out study --workers 16

The short form on a CPU, some minutes:

    python examples/benchmarks/study/run_study.py --out study --device cpu --size short

It can be stopped and started again: data sets and finished arms are files in `--out` and are kept. Phases: `prepare`
(clips), `time` (seconds of a batch, one process a GPU, nothing else running), `tune` (settings of every method on other
clips), `main` (all reported arms). `study_results.py` makes tables and figures of it.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from arm_data import Piece, pieces, write_piece
from arms import (
    ANCHORLESS,
    FULL,
    HELDOUT_CLIPS,
    METHODS,
    SHORT,
    TRAIN_CLIPS,
    TUNE_HELDOUT_CLIPS,
    TUNE_TRAIN_CLIPS,
    VARIANTS,
    Arm,
    Scale,
    study_arms,
    timing_arms,
    tuning_arms,
)

PHASES = ("prepare", "time", "tune", "main")
SIZES = {"full": FULL, "short": SHORT, "anchorless": ANCHORLESS, "variants": VARIANTS}
SIZES_HELP = """full: all arms, on GPUs
short: four methods, one seed, a small budget, no tuning
anchorless: NFT and Flow-GRPO without anchors, three seeds, for a CPU
variants: NFT, every noise level at each visit, deviation of the group; three seeds, for a CPU"""
TUNING_FILE = "tuning.json"
Task = Piece | Arm


@dataclass(frozen=True)
class Place:
    """Where things lie: data sets in `root/data`, results in `root/arms`."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    def result(self, arm: Arm) -> Path:
        return self.root / "arms" / f"{arm.name}.json"

    def is_done(self, task: Task) -> bool:
        return (task.path(self.data) if isinstance(task, Piece) else self.result(task)).is_file()


def write_json(path: Path, value: Any) -> None:
    """Write beside, then rename: a killed study leaves no half file."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value) + "\n")
    part.rename(path)


def do_task(task: Task, place: Place, scale: Scale, device: str) -> str:
    """Carry out a task; returns a line about it."""
    import torch
    from arm_training import open_world, run_arm

    began = time.perf_counter()
    where = torch.device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if isinstance(task, Piece):
        write_piece(task, place.data, open_world(where))
        return f"{task.path(place.data).name}: {time.perf_counter() - began:.1f} s"
    result = run_arm(task, scale, place.data, where)
    write_json(place.result(task), result)
    scores = " ".join(f"{point['referee']:.1f}" for point in result["curve"])
    return f"{task.name}: {scores}  ({time.perf_counter() - began:.1f} s)"


def end_with_parent() -> None:
    """A killed study must not leave processes behind that go on training."""
    parent = parent_process()
    assert parent is not None, "a worker is a child"
    parent.join()
    os._exit(1)


def work(number: int, device: str, place: Place, scale: Scale, inbox: Any, done: Any) -> None:
    """A worker process: one task after the other until None comes; it ends with the study, however that ends."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    while (task := inbox.get()) is not None:
        try:
            done.put((number, True, do_task(task, place, scale, device)))
        except Exception:  # noqa: BLE001 - the boundary of a worker: the study goes on without this arm
            done.put((number, False, f"{task}\n{traceback.format_exc()}"))


class Pool:
    """Worker processes spread over the devices, a process on every device first; they live as long as the study.

    Args:
        deadline: start no task after so many seconds.
    """

    def __init__(self, devices: Sequence[str], workers: int, place: Place, scale: Scale, deadline: float) -> None:
        context = get_context("spawn")
        self._place, self._deadline = place, deadline
        self._began = time.monotonic()
        self._done = context.Queue()
        self._inboxes = [context.Queue() for _ in range(workers)]
        self._processes = [
            context.Process(
                target=work,
                args=(number, devices[number % len(devices)], place, scale, inbox, self._done),
                daemon=True,
            )
            for number, inbox in enumerate(self._inboxes)
        ]
        for process in self._processes:
            process.start()
        self.failures = 0

    def run(self, title: str, tasks: Sequence[Task], workers: int | None = None) -> bool:
        """All tasks that are not done yet; False if the deadline left some out, or some failed.

        Args:
            workers: use only the first so many processes.
        """
        waiting = deque(task for task in tasks if not self._place.is_done(task))
        self._say(f"{title}: {len(waiting)} of {len(tasks)} left")
        busy: dict[int, Task] = {}
        failures = self.failures
        for number in range(workers or len(self._processes)):
            self._give(number, waiting, busy)
        while busy:
            try:
                number, good, text = self._done.get(timeout=5)
            except queue.Empty:
                self._bury(busy)
                continue
            del busy[number]
            self.failures += not good
            self._say(f"{'done' if good else 'FAILED'} ({number}) {text}")
            self._give(number, waiting, busy)
        if waiting:
            self._say(f"{len(waiting)} left at the deadline: run again")
        return not waiting and self.failures == failures

    def close(self) -> None:
        """Let the processes end."""
        for inbox in self._inboxes:
            inbox.put(None)
        for process in self._processes:
            process.join()

    def _give(self, number: int, waiting: deque[Task], busy: dict[int, Task]) -> None:
        if waiting and time.monotonic() - self._began < self._deadline:
            busy[number] = waiting.popleft()
            self._inboxes[number].put(busy[number])

    def _bury(self, busy: dict[int, Task]) -> None:
        """A process that was killed sends no word."""
        for number in [n for n in busy if not self._processes[n].is_alive()]:
            self._say(f"FAILED ({number}) the process has ended: {busy.pop(number)}")
            self.failures += 1

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)


def data_tasks(scale: Scale) -> list[Piece]:
    """Pieces of every data set, the reported ones first."""
    from arm_training import training_total

    sets = [(HELDOUT_CLIPS, scale.heldout)]
    sets += [(TRAIN_CLIPS + seed, training_total(scale, tune=False)) for seed in scale.seeds]
    if scale.tune_batches:
        sets += [(TUNE_HELDOUT_CLIPS, scale.tune_heldout), (TUNE_TRAIN_CLIPS, training_total(scale, tune=True))]
    return [piece for seed, total in sets for piece in pieces(seed, total)]


def choose(place: Place, arms: Sequence[Arm]) -> dict[str, int]:
    """The setting of every tuned method with the best mean of its last held-out scores; written once, then kept.

    Raises:
        SystemExit: a tuning arm has no result.
    """
    target = place.root / TUNING_FILE
    if target.is_file():
        return {name: int(line["chosen"]) for name, line in json.loads(target.read_text()).items()}
    table: dict[str, dict[str, Any]] = {}
    for arm in arms:
        if not place.is_done(arm):
            raise SystemExit(f"{arm.name} has no result: run the phase tune first")
        result = json.loads(place.result(arm).read_text())
        score = sum(point["referee"] for point in result["curve"]) / len(result["curve"])
        rows = table.setdefault(arm.method, {"grid": []})["grid"]
        rows.append({**asdict(arm.setting), "score": score, "curve": [p["referee"] for p in result["curve"]]})
    for line in table.values():
        line["chosen"] = max(range(len(line["grid"])), key=lambda n: line["grid"][n]["score"])
    if table:
        write_json(target, table)
    return {name: int(line["chosen"]) for name, line in table.items()}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of data sets and results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--workers", type=int, default=None, help="arms at once; default 8 a GPU, 1 on a CPU")
    parser.add_argument("--size", choices=sorted(SIZES), default="full", help=SIZES_HELP)
    parser.add_argument("--phases", default=",".join(PHASES), help="which of prepare,time,tune,main")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="start no arm after so many seconds")
    parser.add_argument("--only", default="", help="main arms whose name holds one of these, comma separated")
    options = parser.parse_args(argv)
    unknown = set(options.phases.split(",")) - set(PHASES)
    if unknown:
        parser.error(f"unknown phases {', '.join(sorted(unknown))}: use {', '.join(PHASES)}")
    return options


def study(place: Place, scale: Scale, pool: Pool, phases: Sequence[str], devices: int, only: Sequence[str]) -> bool:
    """The phases in order; True if all that was asked for is done."""
    finished = True
    if "prepare" in phases:
        finished = pool.run("prepare", data_tasks(scale))
    if finished and "time" in phases:
        # One process a GPU and nothing beside it: only then are seconds a method's own.
        finished = pool.run("time", timing_arms(scale), workers=devices)
    if finished and "tune" in phases:
        finished = pool.run("tune", tuning_arms(scale))
    if finished and "main" in phases:
        chosen = choose(place, tuning_arms(scale))
        print("settings: " + ", ".join(f"{name} {METHODS[name].grid[n]}" for name, n in chosen.items()), flush=True)
        arms = [arm for arm in study_arms(scale, chosen) if not only or any(part in arm.name for part in only)]
        finished = pool.run("main", arms)
    return finished


def main(argv: Sequence[str] | None = None, scale: Scale | None = None) -> int:
    """0 when everything asked for is done, 5 when some is left for another start, 1 when an arm failed."""
    options = parse(argv)
    place = Place(options.out.resolve())
    place.data.mkdir(parents=True, exist_ok=True)
    (place.root / "arms").mkdir(exist_ok=True)
    devices = ["cpu"]
    if options.device == "cuda":
        import torch

        devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        if not devices:
            raise SystemExit("no GPU is visible: use --device cpu")
    workers = options.workers or (8 * len(devices) if options.device == "cuda" else 1)
    chosen_scale = scale or SIZES[options.size]
    pool = Pool(devices, workers, place, chosen_scale, options.deadline)
    only = [part for part in options.only.split(",") if part]
    finished = study(place, chosen_scale, pool, options.phases.split(","), len(devices), only)
    pool.close()
    return 1 if pool.failures else 0 if finished else 5


if __name__ == "__main__":
    sys.exit(main())
