"""A scaling model: days of the three stages on N cards, from measured parts.

    python examples/benchmarks/scaling.py --out examples/benchmarks/results [--profile verify-profile/profile.json]
        [--ranks two_gpus_even.json] [--gpu l20]

Without `--profile` the parts are those that `sprl train-nft --dry-run` reckons with; both read
`stateplay_rl/stages/train_nft/speeds.py`. `--ranks` is a JSON file of two_gpus.py with `--alone`: from it
comes the share of time that a further rank costs. Writes scaling.json and scaling.png, prints a table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stateplay_rl.config.rollout import SamplingConfig
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.stages.train_nft.estimates import SECONDS_PER_DAY, seconds_of_parts
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stages.train_nft.speeds import H200, H200_SLOWER, PARTS, Speeds

PER_BATCH, STAGE_A, STAGE_C = 28, 2_000, 6_000
EVALUATION_EVERY = 10
STUDENT_STEP_SECONDS = 7.35
"""A LoRA step on one group on one H200, measured: results/profile_h200.json; its scoring is in `Speeds`."""
API_ANSWER_SECONDS = 60.0
STUDENT_SHARE, STUDENT_EPOCHS = 0.8, 2
SAMPLERS: Mapping[str, dict[str, Any]] = {
    "euler, 30 steps": {},
    "euler, 20 steps": {"steps": 20},
    "12 evaluations: ab2, or 30 steps with +taylor3": {"solver": "ab2", "steps": 12},
    "8 evaluations": {"solver": "ab2", "steps": 8},
}
ASSUMPTIONS = (
    f"stage A {STAGE_A:,} conditions, stage C {STAGE_C:,}, batches of {PER_BATCH} x 4, 2 passes, both anchors",
    "a card's seconds do not depend on how many cards work, but for the measured loss per further rank",
    "the rank with most conditions decides; no candidate is sampled by two cards",
    f"an API answer takes {API_ANSWER_SECONDS:g} s; all but the last of a batch overlap with sampling",
    "the student scores on the cards that sample, after sampling: not overlapped",
    f"the student learns {STUDENT_SHARE:.0%} of stage A's groups {STUDENT_EPOCHS} times",
    f"held-out: 16 conditions x 2 samples every {EVALUATION_EVERY} batches",
    "loading, checkpoints, restarts, failures, audits: nothing",
)


def plan(kind: str, conditions: int) -> SegmentPlan:
    """A stage from its first batch to its last."""
    return SegmentPlan(kind, 0, 0, conditions, PER_BATCH)


def loss_per_rank(ranks: Path | None) -> float:
    """Share of a batch's time that each further rank adds; 0 when not measured.

    Together against alone, the slowest rank of each; rounding to whole conditions is taken out.
    """
    if ranks is None:
        return 0.0
    found = json.loads(ranks.read_text())
    count, conditions = found["ranks"], found["settings"]["conditions"]
    cases = [case for case in found["results"] if "alone" in case["ranks"][0]]
    cases = [case for case in cases if case["world"] == "stateplay-5b"] or cases
    if count < 2 or not cases:
        raise SystemExit(f"{ranks}: not a run of two_gpus.py on several ranks with --alone")

    def seconds(lines: Sequence[Mapping[str, Any]]) -> float:
        return max(sum(line["seconds"].get(part, 0.0) for part in ("sample", "decode", "train")) for line in lines)

    together = sum(seconds(case["ranks"]) for case in cases)
    alone = sum(seconds([rank["alone"] for rank in case["ranks"]]) for case in cases)
    ideal = alone * -(-conditions // count) / conditions
    return max(0.0, (together / ideal - 1.0) / (count - 1))


def predict(speeds: Speeds, gpus: int, sampler: Mapping[str, Any], loss: float, slower: float) -> dict[str, float]:
    """Days of every part of A, B and C on so many cards."""
    config = TrainNftConfig(sampling=SamplingConfig(**sampler), heldout={"conditions": 16, "samples": 2})
    waits = 1.0 + loss * (gpus - 1)
    days: dict[str, float] = {}
    for kind, count in (("a", STAGE_A), ("c", STAGE_C)):
        stage = plan(kind, count)
        evaluations = 1 + -(-stage.batches // EVALUATION_EVERY)
        parts = seconds_of_parts(config, stage, evaluations, gpus, speeds)
        parts = {f"{kind}: {name}": waits * value for name, value in parts.items()}
        if kind == "a":
            parts["a: waiting for the API"] = API_ANSWER_SECONDS * stage.batches
        else:
            groups = sum(-(-size // gpus) for size in stage.sizes())
            parts["c: student scores"] = groups * speeds.student
        days |= {name: value / SECONDS_PER_DAY for name, value in parts.items()}
    learnt = STAGE_A * STUDENT_SHARE * STUDENT_EPOCHS / gpus
    days["b: student"] = learnt * STUDENT_STEP_SECONDS * slower / SECONDS_PER_DAY
    return days


def summary(parts: Mapping[str, float]) -> dict[str, float]:
    """Days by stage, and in all."""
    stages = {stage: sum(v for name, v in parts.items() if name.startswith(stage)) for stage in "abc"}
    return {**stages, "in all": sum(stages.values())}


def draw(table: Mapping[str, Mapping[str, dict[str, float]]], gpu: str, out: Path) -> None:
    """Days in all against cards, a line a sampler, beside an ideal 1 / N."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, by_count in table.items():
        counts = [int(count) for count in by_count]
        days = [sum(parts.values()) for parts in by_count.values()]
        (line,) = axes.plot(counts, days, "o-", label=name)
        axes.plot(counts, [days[0] * counts[0] / count for count in counts], ":", color=line.get_color(), alpha=0.6)
    axes.set(xscale="log", yscale="log", xlabel=f"{gpu.upper()} cards", ylabel="days, stages A, B and C")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.xaxis.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_title("predicted, not measured; dotted: 1 / N")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(out, dpi=110, metadata={"Software": None})
    plt.close(figure)


def show(table: Mapping[str, Mapping[str, dict[str, float]]], gpu: str, speeds: Speeds) -> None:
    console = Console(width=120)
    printed = Table("sampler", "cards", "A", "B", "C", "in all, days", title=f"on {gpu.upper()} cards")
    for name, by_count in table.items():
        for count, parts in by_count.items():
            printed.add_row(name, count, *(f"{value:.1f}" for value in summary(parts).values()))
    console.print(printed)
    for part in PARTS:
        console.print(f"{part}: {getattr(speeds, part):.2f} s ({speeds.sources[part]})")
    for line in ASSUMPTIONS:
        console.print(f"assumed: {line}")


def main(argv: Sequence[str] | None = None) -> None:
    """Predict, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for scaling.json and scaling.png")
    parser.add_argument(
        "--profile", type=Path, help="profile.json of `sprl verify profile` on an H200, or on --gpu itself"
    )
    parser.add_argument("--ranks", type=Path, help="two_gpus.py's JSON of several ranks with --alone")
    parser.add_argument("--gpu", choices=sorted(H200_SLOWER), default="l20")
    parser.add_argument("--counts", default="1,2,4,7,14", help="numbers of cards")
    options = parser.parse_args(argv)
    base, profile = H200, None if options.profile is None else json.loads(options.profile.read_text())
    if profile is not None:
        base = H200.measured(profile)
    itself = profile is not None and options.gpu.upper() in profile["machine"]["device"].upper()
    speeds = base if itself else base.on(options.gpu)
    slower = H200_SLOWER[options.gpu]
    loss = loss_per_rank(options.ranks)
    table = {
        name: {count: predict(speeds, int(count), sampler, loss, slower) for count in options.counts.split(",")}
        for name, sampler in SAMPLERS.items()
    }
    options.out.mkdir(parents=True, exist_ok=True)
    value = {
        "gpu": options.gpu,
        "assumptions": [
            *ASSUMPTIONS,
            f"loss per further rank {loss:.3f}" + ("" if options.ranks else ", not measured"),
        ],
        "seconds": {part: getattr(speeds, part) for part in PARTS},
        "sources": dict(speeds.sources),
        "days": table,
        "summary": {n: {c: summary(parts) for c, parts in by_count.items()} for n, by_count in table.items()},
    }
    (options.out / "scaling.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    draw(table, options.gpu, options.out / "scaling.png")
    show(table, options.gpu, speeds)


if __name__ == "__main__":
    main()
