"""The whole chain on the embedded world, on a laptop CPU: what `make demo` runs.

    python examples/demo.py --out demo [--seed 0] [--clips 256]

clips -> audit-ckpt -> build-conditions -> rollout -> score (over HTTP) -> train-nft, beside it the same with shuffled
rewards -> train-rm on groups of that run -> train-nft, stage C, one batch judged by the student -> report. Every step
is the command line that a user would type; each one is printed. At the end the held-out referee score before and
after, the student's agreement and what its gate said are printed and written to `summary.json`. Nothing is canned:
another seed, other numbers; with some the gate refuses stage C, and the demo says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo_runner import Demo
from rich.table import Table

from stateplay_rl.errors import CheckError
from stateplay_rl.nft.statistics import Interval, bootstrap_conditions, paired_differences
from stateplay_rl.stores.atomic import write_json
from stateplay_rl.stores.conditions import ConditionStore

CONFIG = Path(__file__).resolve().parent / "configs" / "arena.yaml"
STUDENT_CONFIG = Path(__file__).resolve().parent / "student" / "arena.yaml"
MARK = ".sprl-demo"
HELDOUT = 48
BY_HAND_GROUPS = 12
STUDENT_GROUPS = 64
"""Groups of the run that the student learns from and is tested on: what two cores read in half a minute."""
STUDENT_SHARES = "[0.6,0.1,0.3]"
"""Of them for training, validation and the gate's test: as many for the test as an interval needs."""
CLIP_SEED = 1000
"""Clips of run seed s are drawn from seed 1000 + s; settings were tuned on other clips."""


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
    """Audit, conditions, one hand-made batch scored over HTTP, training and its control."""
    out, seed = demo.out, str(demo.seed)
    conditions = str(out / "conditions")
    demo.run("audit-ckpt", "audit-ckpt", "--world", "arena", "--out", str(out / "audit"))
    csv = str(out / "clips" / "metadata_state_polish.csv")
    preset = ("--set", "preset=arena", "--heldout", str(HELDOUT), "--set", f"split.student_shares={STUDENT_SHARES}")
    demo.run("build-conditions", "build-conditions", "--csv", csv, *preset, "--out", conditions)
    groups, scores = str(out / "groups"), str(out / "scores")
    some = ("--limit", str(BY_HAND_GROUPS), "--mode", "full", "--seed", seed)
    sampling = ("--set", "sampling.steps=5", "--set", "sampling.candidates_per_call=4")
    demo.run("rollout", "rollout", conditions, *some, *sampling, "--out", groups)
    with judge_server(demo) as url:
        http = ("--judge", "openai", "--base-url", url, "--requests", str(out / "requests"))
        demo.run("score", "score", groups, *http, "--out", scores)
    control = ("--set", "control=shuffled_rewards", "--set", "experiment=arena_shuffled")
    with demo.stage("training, both runs"):
        demo.run_together(
            {
                "train-nft": [*train_command(demo), "--out", str(out / "run")],
                "shuffled control": [*train_command(demo), *control, "--out", str(out / "control")],
            }
        )


def train_command(demo: Demo) -> list[str]:
    """`train-nft` with all that both runs and both stages share."""
    shared = ("--config", str(CONFIG), "--audit", str(demo.out / "audit"), "--seed", str(demo.seed))
    return ["train-nft", str(demo.out / "conditions"), *shared, "--set", f"encoded={demo.out / 'encoded'}"]


def student(demo: Demo) -> bool:
    """Stage B on groups of the run, and stage C if the gate allows it; returns whether it did."""
    run, scores, reward_model = (str(demo.out / name) for name in ("run", "student_scores", "reward_model"))
    some = ("--judge", "referee", "--limit", str(STUDENT_GROUPS))
    demo.run("score for the student", "score", run, *some, "--out", scores)
    learning = ("--config", str(STUDENT_CONFIG), "--seed", str(demo.seed))
    demo.run_on_two("train-rm", "train-rm", run, "--scores", scores, *learning, "--out", reward_model)
    judge = ("--judge", "student", "--reward-model", reward_model, "--set", "judge.student_device=cpu")
    # Its gate was asked on held-out groups; a held-out evaluation by it would stand beside stage A's other judge.
    one_batch = ("--set", "stage_c_conditions=16", "--set", "heldout.conditions=0")
    command = (*train_command(demo), "--out", run, "--stage", "c", *judge, *one_batch)
    code = demo.run("stage C", *command, may_end_with=(CheckError.exit_code,))
    gate = json.loads((demo.out / "reward_model" / "gate.json").read_text())
    if code and gate["passed"]:
        raise SystemExit(code)
    if code:
        demo.console.print("Stage C was refused: the student is not good enough. That is what the gate is for.")
    return code == 0


def report(demo: Demo) -> None:
    """All of it on one page."""
    pages = [str(demo.out / name) for name in ("run", "control", "scores", "reward_model")]
    demo.run("report", "report", *pages, "--out", str(demo.out / "report"))


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a file, one a line."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def heldout_lines(run: Path) -> tuple[dict[str, object], dict[str, object]]:
    """First and last held-out evaluation of stage A."""
    lines = [line for line in json_lines(run / "heldout.jsonl") if line["stage"] == "a"]
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


def student_summary(demo: Demo, stage_c: bool) -> dict[str, object]:
    """What the student's gate measured, and what it judged in stage C."""
    evaluation = json.loads((demo.out / "reward_model" / "evaluation.json").read_text())
    gate = json.loads((demo.out / "reward_model" / "gate.json").read_text())
    batches = [line for line in json_lines(demo.out / "run" / "metrics.jsonl") if line["stage"] == "c"]
    return {
        "agreement": evaluation["student"]["pairwise_agreement"],
        "agreement_ci95": evaluation["student"]["pairwise_agreement_interval"],
        "base_agreement": evaluation["baselines"]["untrained"]["pairwise_agreement"],
        "test_groups": evaluation["student"]["groups"],
        "gate_passed": gate["passed"],
        "gate_failed": [check["name"] for check in gate["checks"] if not check["passed"]],
        "stage_c_started": stage_c,
        "stage_c_batches": [
            {"groups": line["groups"], "student_mean": line["reward_mean"], "referee_mean": line["referee_mean"]}
            for line in batches
        ],
    }


def summarise(demo: Demo, stage_c: bool) -> dict[str, object]:
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
        "student": student_summary(demo, stage_c),
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
    for name, text in student_rows(summary["student"]):  # type: ignore[arg-type]
        table.add_row(name, text)
    table.add_row("seconds", f"{summary['seconds']['total']:.0f}")  # type: ignore[index]
    table.add_row("report", str(summary["report"]))
    demo.console.print()
    demo.console.print(table)


def student_rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Lines about the student and stage C."""
    low, high = found["agreement_ci95"]
    agreement = f"{found['agreement']:.2f}, 95 % interval [{low:.2f}, {high:.2f}], {found['test_groups']} groups"
    yield "student's agreement with the judge", f"{agreement}; its base without training {found['base_agreement']:.2f}"
    yield "student's gate", "passed" if found["gate_passed"] else f"not passed: {', '.join(found['gate_failed'])}"
    if not found["stage_c_started"]:
        yield "stage C", "refused by the gate"
    for batch in found["stage_c_batches"]:
        means = f"mean {batch['student_mean']:.1f}, the referee on the same {batch['referee_mean']:.1f}"
        yield "stage C, judged by the student", f"1 batch of {batch['groups']} groups: {means}"


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
    stage_c = student(demo)
    report(demo)
    summary = summarise(demo, stage_c)
    write_json(demo.out / "summary.json", summary)
    show(demo, summary)


if __name__ == "__main__":
    main()
