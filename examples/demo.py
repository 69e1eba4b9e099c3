"""The whole chain on the embedded world, on a laptop CPU: what `make demo` runs.

    python examples/demo.py --out demo [--seed 0] [--clips 256]

clips -> audit-ckpt -> build-conditions -> rollout -> score (over HTTP) -> train-nft, beside it the same with shuffled
rewards -> report. Every step is the command line that a user would type; each one is printed. At the end the held-out
referee score before and after is printed and written to `summary.json`. Nothing is canned: another seed, other
numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stateplay_rl.cli.main import main as sprl
from stateplay_rl.nft.statistics import Interval, bootstrap_conditions, paired_differences
from stateplay_rl.stores.atomic import write_json
from stateplay_rl.stores.conditions import ConditionStore

CONFIG = Path(__file__).resolve().parent / "configs" / "arena.yaml"
MARK = ".sprl-demo"
HELDOUT = 48
BY_HAND_GROUPS = 12
CLIP_SEED = 1000
"""Clips of run seed s are drawn from seed 1000 + s; settings were tuned on other clips."""


@dataclass
class Demo:
    """Where the demo writes, its seed, and the seconds of every stage so far."""

    out: Path
    seed: int
    clips: int
    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    console: Console = field(default_factory=lambda: Console(highlight=False))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)

    def run(self, name: str, *arguments: str) -> None:
        """One `sprl` command; stops the demo when it fails."""
        self.console.print(f"\n[bold cyan]$ sprl {shlex.join(arguments)}[/]")
        with self.stage(name):
            code = sprl(list(arguments))
        if code:
            raise SystemExit(code)

    def run_together(self, commands: dict[str, Sequence[str]]) -> None:
        """Several `sprl` commands side by side, one core each; stops the demo when one fails."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        started = time.monotonic()
        processes = {}
        for name, arguments in commands.items():
            self.console.print(f"\n[bold cyan]$ sprl {shlex.join(arguments)}[/]  (as \\[{name}] below)")
            processes[name] = subprocess.Popen(
                [sys.executable, "-m", "stateplay_rl", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            )
        threads = [
            threading.Thread(target=self._follow, args=(name, process, started)) for name, process in processes.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failed = next((process.returncode for process in processes.values() if process.returncode), 0)
        if failed:
            raise SystemExit(failed)

    def _follow(self, name: str, process: subprocess.Popen[str], started: float) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if "rollout:" not in line:
                self.console.print(f"[{name}] {line.rstrip()}", markup=False)
        process.wait()
        self.seconds[name] = round(time.monotonic() - started, 1)


def fresh_folder(out: Path) -> None:
    """An empty folder; only an earlier demo's own folder is replaced.

    Raises:
        SystemExit: the folder holds something else.
    """
    if out.exists() and any(out.iterdir()):
        if not (out / MARK).is_file():
            raise SystemExit(f"{out} holds something that no demo wrote: give another --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()


def make_clips(demo: Demo) -> None:
    """The data set: clips of the true engine in the real data's format."""
    from stateplay_rl.arena.clips import write_clips

    command = f"python -m stateplay_rl.arena.make_clips --out {demo.out / 'clips'} --clips {demo.clips}"
    demo.console.print(f"\n[bold cyan]$ {command} --seed {CLIP_SEED + demo.seed}[/]")
    with demo.stage("clips"):
        write_clips(demo.out / "clips", demo.clips, CLIP_SEED + demo.seed, workers=os.cpu_count() or 1)


@contextmanager
def judge_server(demo: Demo) -> Iterator[str]:
    """Arena's referee behind an OpenAI-compatible server on the loopback interface; yields its base URL."""
    command = [sys.executable, "-m", "stateplay_rl.arena.serve", "--port", "0"]
    demo.console.print("\n[bold cyan]$ python -m stateplay_rl.arena.serve --port 0 &[/]")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            # Its first line is "serving http://127.0.0.1:PORT/v1".
            said = server.stdout.readline().split()
            if len(said) != 2:
                raise SystemExit("the judge server did not start")
            yield said[1]
        finally:
            server.terminate()


def chain(demo: Demo) -> None:
    """Audit, conditions, one hand-made batch scored over HTTP, training, its control, the report."""
    out, seed = demo.out, str(demo.seed)
    conditions = str(out / "conditions")
    demo.run("audit-ckpt", "audit-ckpt", "--world", "arena", "--out", str(out / "audit"))
    csv = str(out / "clips" / "metadata_state_polish.csv")
    preset = ("--set", "preset=arena", "--heldout", str(HELDOUT))
    demo.run("build-conditions", "build-conditions", "--csv", csv, *preset, "--out", conditions)
    groups, scores = str(out / "groups"), str(out / "scores")
    some = ("--limit", str(BY_HAND_GROUPS), "--mode", "full", "--seed", seed)
    sampling = ("--set", "sampling.steps=5", "--set", "sampling.candidates_per_call=4")
    demo.run("rollout", "rollout", conditions, *some, *sampling, "--out", groups)
    with judge_server(demo) as url:
        http = ("--judge", "openai", "--base-url", url, "--requests", str(out / "requests"))
        demo.run("score", "score", groups, *http, "--out", scores)
    shared = ("--config", str(CONFIG), "--audit", str(out / "audit"), "--seed", seed)
    encoded = ("--set", f"encoded={out / 'encoded'}")
    train = ("train-nft", conditions, *shared, *encoded)
    control = ("--set", "control=shuffled_rewards", "--set", "experiment=arena_shuffled")
    with demo.stage("training, both runs"):
        demo.run_together(
            {
                "train-nft": [*train, "--out", str(out / "run")],
                "shuffled control": [*train, *control, "--out", str(out / "control")],
            }
        )
    pages = [str(out / name) for name in ("run", "control", "scores")]
    demo.run("report", "report", *pages, "--out", str(out / "report"))


def heldout_lines(run: Path) -> tuple[dict[str, object], dict[str, object]]:
    """First and last held-out evaluation of a run."""
    lines = [json.loads(line) for line in (run / "heldout.jsonl").read_text().splitlines()]
    return lines[0], lines[-1]


def means(line: dict[str, object]) -> dict[str, float]:
    """Mean score of every held-out condition, points."""
    scores = line["scores"]
    assert isinstance(scores, dict)
    return {condition: sum(values) / len(values) for condition, values in scores.items()}


def gain_of(run: Path, conditions: ConditionStore) -> Interval:
    """Paired gain over the held-out conditions, 95 % bootstrap interval over clusters of conditions."""
    before, after = heldout_lines(run)
    cluster_of = {record.condition_id: record.cluster_id for record in conditions.records}
    return bootstrap_conditions(paired_differences(means(before), means(after)), cluster_of)


def summarise(demo: Demo) -> dict[str, object]:
    """What came out, as it goes into `summary.json`."""
    conditions = ConditionStore.open(demo.out / "conditions")
    before, after = heldout_lines(demo.out / "run")
    gain, control = gain_of(demo.out / "run", conditions), gain_of(demo.out / "control", conditions)
    return {
        "heldout_before": before["reward_mean"],
        "heldout_after": after["reward_mean"],
        "gain": gain.mean,
        "gain_ci95": [gain.low, gain.high],
        "control_gain": control.mean,
        "control_gain_ci95": [control.low, control.high],
        "frozen_display_before": before["frozen_display_share"],
        "frozen_display_after": after["frozen_display_share"],
        "conditions": before["conditions"],
        "candidates_seen": after["candidates_seen"],
        "seed": demo.seed,
        "seconds": {**demo.seconds, "total": round(time.monotonic() - demo.started, 1)},
        "report": str(demo.out / "report" / "report.html"),
    }


def show(demo: Demo, summary: dict[str, object]) -> None:
    """The end of the demo, for people."""
    table = Table("", "", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("held-out referee score", f"{summary['heldout_before']:.1f} -> {summary['heldout_after']:.1f} of 100")
    for name, key in (("gain", "gain"), ("control (shuffled rewards)", "control_gain")):
        low, high = summary[f"{key}_ci95"]  # type: ignore[misc]
        table.add_row(name, f"{summary[key]:+.1f} points, 95 % interval [{low:+.1f}, {high:+.1f}]")
    frozen = f"{summary['frozen_display_before']:.0%} -> {summary['frozen_display_after']:.0%}"
    table.add_row("videos with a frozen display", frozen)
    table.add_row("held-out conditions", str(summary["conditions"]))
    table.add_row("seconds", f"{summary['seconds']['total']:.0f}")  # type: ignore[index]
    table.add_row("report", str(summary["report"]))
    demo.console.print()
    demo.console.print(table)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, run the chain, summarise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder of the demo; an earlier demo is replaced"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of clips, noise and shuffles")
    parser.add_argument("--clips", type=int, default=256, help="clips to make; training takes 160 of them")
    arguments = parser.parse_args(argv)
    fresh_folder(arguments.out)
    demo = Demo(arguments.out, arguments.seed, arguments.clips)
    make_clips(demo)
    chain(demo)
    summary = summarise(demo)
    write_json(demo.out / "summary.json", summary)
    show(demo, summary)


if __name__ == "__main__":
    main()
