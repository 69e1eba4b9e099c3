"""The CPU side's figures: every row once, and how costs grow with the number of conditions.

    python examples/benchmarks/cpu_rows.py --out examples/benchmarks/results [--only help,audit,...]

Each row runs real commands in processes of their own, on inputs that are written here; wall and processor seconds stand
side by side, because wall time means little on a machine that does other work. Rows are merged into cpu_rows.json; the
part `growth` writes growth.csv and growth.png, at 100, 1,000 and 10,000 conditions (`--counts`).
"""

from __future__ import annotations

import argparse
import csv
import http.client
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import cpu_inputs
from cost import Cost, run, sprl

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]
CLIPS = {"832x480": (480, 832, 24), "384x224": (224, 384, 40)}
"""Height, width, number of clips."""
TARGET_CLIPS = {"832x480": 25.0, "384x224": 40.0}
SCORED_GROUPS, BODY_BYTES = 150, 250_000
REPORTED_GROUPS = 10_000
UNSEALED_AUDIT = (0, 4)
"""An audit of a file alone is partial: exit 4."""


def write_groups(path: Path, count: int) -> Path:
    """Arena's groups as the judge's drill makes them."""
    drills = str(HERE.parent / "drills")
    if drills not in sys.path:
        sys.path.append(drills)
    from arena_groups import write_groups as write

    return write(path, count)  # type: ignore[no-any-return]


def row(name: str, value: float, unit: str, target: str, cost: Cost, **more: Any) -> Row:
    """One line; `value` is what the target is about."""
    return {"row": name, "value": round(value, 3), "unit": unit, "target": target, **vars(cost)} | more


def help_time(folder: Path) -> list[Row]:
    """`--help` of the program and of its heaviest commands."""
    rows = []
    for words in ((), ("train-nft",), ("build-conditions",)):
        costs = [sprl(*words, "--help") for _ in range(5)]
        cost = sorted(costs, key=lambda c: c.cpu_seconds)[2]
        name = " ".join(("sprl", *words, "--help"))
        rows.append(row(name, cost.cpu_seconds, "s of CPU", "< 0.4 s", cost))
    return rows


def audit(folder: Path) -> list[Row]:
    """Headers of 10 GB, and the hash of 1 GB."""
    large = cpu_inputs.write_sparse_checkpoint(folder / "large.safetensors", 10.0)
    headers = sprl("audit-ckpt", large, "--out", folder / "headers", "--quiet", accept=UNSEALED_AUDIT)
    small = cpu_inputs.write_sparse_checkpoint(folder / "small.safetensors", 1.0)
    size = small.stat().st_size / 1e9
    # First, so that the file lies in memory for both: what is measured is the command, not the disk.
    code = "import sys, pathlib, stateplay_rl.stores.atomic as a; a.sha256_file(pathlib.Path(sys.argv[1]))"
    alone = run([sys.executable, "-c", code, str(small)])
    never = ("--set", "hash_limit_bytes=0", "--quiet")
    without = sprl("audit-ckpt", small, "--out", folder / "without", *never, accept=UNSEALED_AUDIT)
    hashed = sprl("audit-ckpt", small, "--out", folder / "hashed", "--hash", *never, accept=UNSEALED_AUDIT)
    rate = size / max(hashed.cpu_seconds - without.cpu_seconds, 1e-9)
    return [
        row("audit-ckpt, 10 GB, headers only", headers.cpu_seconds, "s of CPU", "< 2 s", headers),
        row("audit-ckpt --hash", rate, "GB a second of CPU", "disk's speed or 1 GB/s", hashed, hash_alone=vars(alone)),
    ]


def build_conditions(folder: Path) -> list[Row]:
    """Rows with real videos, two workers."""
    rows = []
    for size, (height, width, count) in CLIPS.items():
        csv_file = cpu_inputs.write_video_clips(folder / size, count, height, width)
        out = folder / f"conditions-{size}"
        arguments = ("--csv", csv_file, "--heldout", "4", "--set", "hud=none", "--workers", "2", "--quiet")
        cost = sprl("build-conditions", *arguments, "--out", out)
        start_up = sprl("build-conditions", *arguments, "--limit", "2", "--out", folder / f"two-{size}")
        each = (cost.cpu_seconds - start_up.cpu_seconds) / (count - 2)
        rate = 2 / each
        summary = json.loads((out / "summary.json").read_text())
        facts = {"clips": count, "accepted": summary["eligible"], "cpu_milliseconds_a_clip": round(1000 * each, 1)}
        facts["wall_clips_a_second"] = round((count - 2) / max(cost.wall_seconds - start_up.wall_seconds, 1e-9), 1)
        name = f"build-conditions, videos of {size}"
        rows.append(row(name, rate, "clips/s on 2 free cores", f">= {TARGET_CLIPS[size]:g}", cost, **facts))
    return rows


def payload(folder: Path) -> list[Row]:
    """The judge's payload of the real size, by its own benchmark."""
    cost = run([sys.executable, str(HERE / "judge_payload.py"), "--out", str(folder / "payload")])
    result = json.loads((folder / "payload" / "result.json").read_text())
    made, held = result["payload"], result["in_flight"]
    # Memory of the benchmark itself, which draws the videos, says nothing.
    facts = {**made, "peak_megabytes": None}
    name = f"judge payload, {made['pictures']} pictures"
    return [
        row(name, made["cpu_seconds"], "s of CPU", "<= 1 s", cost, **facts),
        row("28 payloads in flight", held["peak_megabytes"], "MB", "< 1000 MB", cost, **held),
    ]


def score(folder: Path) -> list[Row]:
    """`score` against a server that answers in 50 ms, beside a bare client that sends as much."""
    groups = write_groups(folder / "groups", SCORED_GROUPS)
    rows = []
    with cpu_inputs.Server() as server:
        for in_flight in (1, 4, 28):
            bare = _bare_seconds(server, in_flight)
            arguments = ("--judge", "openai", "--base-url", server.url, "--in-flight", str(in_flight), "--quiet")
            place = folder / f"in-flight-{in_flight}"
            every = sprl("score", groups, *arguments, "--requests", place / "r", "--out", place / "s")
            one = sprl("score", groups, *arguments, "--limit", "1", "--requests", place / "r1", "--out", place / "s1")
            wall, used = every.wall_seconds - one.wall_seconds, every.cpu_seconds - one.cpu_seconds
            ideal = (SCORED_GROUPS - 1) / in_flight * cpu_inputs.ANSWER_SECONDS
            facts = {"groups": SCORED_GROUPS, "bare_client_seconds": round(bare, 2), "ideal_seconds": round(ideal, 2)}
            facts |= {"cpu_milliseconds_a_group": round(1000 * used / (SCORED_GROUPS - 1), 1)}
            facts |= {"seconds_without_start": round(wall, 2)}
            name = f"score, answers in 50 ms, {in_flight} in flight"
            rows.append(row(name, wall / max(bare, ideal), "times the bare client", "<= 1.1", every, **facts))
    return rows


def _bare_seconds(server: cpu_inputs.Server, in_flight: int) -> float:
    """As many requests of about the same size, with nothing else to do."""
    body = b"x" * BODY_BYTES

    def send(_: int) -> None:
        connection = http.client.HTTPConnection(*server.server_address[:2])
        connection.request("POST", "/v1/chat/completions", body)
        connection.getresponse().read()
        connection.close()

    began = monotonic()
    with ThreadPoolExecutor(in_flight) as pool:
        list(pool.map(send, range(SCORED_GROUPS - 1)))
    return monotonic() - began


def report(folder: Path) -> list[Row]:
    """One page over 10,000 groups and their scores."""
    cost = grow_report(folder, REPORTED_GROUPS)
    return [row(f"report, {REPORTED_GROUPS:,} groups", cost.cpu_seconds, "s of CPU", "< 60 s, < 2 GB", cost)]


def nft_batch(folder: Path) -> list[Row]:
    """Arena's batch of 16 x 4; the second one, when everything is warm."""
    run([sys.executable, "-m", "stateplay_rl.arena.make_clips", "--out", str(folder / "clips"), "--clips", "40"])
    csv_file = folder / "clips" / "metadata_state_polish.csv"
    conditions, checked = folder / "conditions", folder / "audit"
    sprl("build-conditions", "--preset", "arena", "--csv", csv_file, "--heldout", "4", "--out", conditions, "--quiet")
    sprl("audit-ckpt", "--world", "arena", "--out", checked, "--quiet")
    config = HERE.parent / "configs" / "arena.yaml"
    changes = ("--set", "stage_conditions=32", "--set", "heldout.conditions=0", "--quiet")
    arguments = ("train-nft", conditions, "--config", config, "--audit", checked, *changes)
    one = sprl(*arguments, "--set", "stage_conditions=16", "--out", folder / "one")
    two = sprl(*arguments, "--out", folder / "two")
    lines = (folder / "two" / "timings.jsonl").read_text().splitlines()
    seconds = json.loads(lines[-1])["seconds"]
    cpu = two.cpu_seconds - one.cpu_seconds
    return [row("arena NFT batch, 16 x 4", cpu, "s of one core", "<= 20 s on 2 cores", two, wall_of_parts=seconds)]


def growth(folder: Path, counts: Sequence[int], commands: Sequence[str], out: Path) -> list[Row]:
    """Costs of `build-conditions`, `score` and `report` at several numbers of conditions."""
    lines: list[Row] = []
    for count in counts:
        for command in commands:
            cost = GROWING[command](folder / f"{command}-{count}", count)
            lines.append({"command": command, "conditions": count, **vars(cost)})
            print(lines[-1], flush=True)
    write_growth(merge_growth(lines, out / "growth.csv"), out)
    return [
        row(
            f"{line['command']}, {count:,} conditions",
            line["cpu_seconds"],
            "s of CPU",
            "linear: growth.csv",
            Cost(*cost),
        )
        for line in lines
        if (count := line["conditions"]) == max(counts) and (cost := list(line.values())[2:])
    ]


def grow_build(folder: Path, count: int) -> Cost:
    """Clip folders without videos, at arena's size."""
    clips = cpu_inputs.write_clip_folders(folder / "clips", count)
    settings = ("--preset", "arena", "--set", "clip.action_window=10", "--set", "hud=none", "--workers", "1", "--quiet")
    return sprl("build-conditions", "--clips", clips, *settings, "--heldout", "10", "--out", folder / "conditions")


def grow_score(folder: Path, count: int) -> Cost:
    """A judge that looks at nothing."""
    groups = write_groups(folder / "groups", count)
    env = {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
    return sprl("score", groups, "--judge", "cpu_inputs:ConstantJudge", "--quiet", "--out", folder / "scores", env=env)


def grow_report(folder: Path, count: int) -> Cost:
    """One page over groups and their scores."""
    groups = write_groups(folder / "groups", count)
    names = sorted(path.name for path in groups.iterdir() if path.is_dir())
    scores = cpu_inputs.write_scores(folder / "scores", groups, names)
    return sprl("report", groups, scores, "--out", folder / "report", "--quiet")


GROWING = {"build-conditions": grow_build, "score": grow_score, "report": grow_report}


def merge_growth(lines: Sequence[Row], file: Path) -> list[Row]:
    """With what the file holds of other commands and counts, in the order of `GROWING` and of counts."""
    known: dict[tuple[str, int], Row] = {}
    if file.is_file():
        with file.open(encoding="utf-8") as stream:
            for text in csv.DictReader(stream):
                line: Row = {"command": text.pop("command"), "conditions": int(text.pop("conditions"))}
                known[line["command"], line["conditions"]] = line | {name: float(v) for name, v in text.items()}
    known |= {(line["command"], line["conditions"]): line for line in lines}
    return sorted(known.values(), key=lambda line: (list(GROWING).index(line["command"]), line["conditions"]))


def write_growth(lines: Sequence[Row], out: Path) -> None:
    """growth.csv, and growth.png: seconds and memory against conditions, straight lines beside them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with (out / "growth.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    figure, (seconds, memory) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for command in dict.fromkeys(line["command"] for line in lines):
        mine = [line for line in lines if line["command"] == command]
        counts = [line["conditions"] for line in mine]
        (drawn,) = seconds.plot(counts, [line["cpu_seconds"] for line in mine], "o-", label=command)
        # Start-up taken off, the largest count's share is what each smaller one would take if growth were linear.
        start = mine[0]["cpu_seconds"]
        slope = (mine[-1]["cpu_seconds"] - start) / max(counts[-1] - counts[0], 1)
        straight = [start + slope * (count - counts[0]) for count in counts]
        seconds.plot(counts, straight, ":", color=drawn.get_color())
        memory.plot(counts, [line["peak_megabytes"] for line in mine], "o-", label=command)
    seconds.set(
        xscale="log", yscale="log", xlabel="conditions", ylabel="processor seconds", title="dotted: a straight line"
    )
    memory.set(xscale="log", xlabel="conditions", ylabel="peak memory, MB", ylim=(0, None), title="of the main process")
    for axes in (seconds, memory):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(out / "growth.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


PARTS: dict[str, Callable[[Path], list[Row]]] = {
    "help": help_time,
    "audit": audit,
    "build-conditions": build_conditions,
    "payload": payload,
    "score": score,
    "report": report,
    "nft-batch": nft_batch,
}


def merge(file: Path, rows: Sequence[Row]) -> None:
    """Rows of the same name are replaced."""
    known = json.loads(file.read_text())["rows"] if file.is_file() else []
    merged = {line["row"]: line for line in [*known, *rows]}
    file.write_text(json.dumps({"cores": os.cpu_count(), "rows": list(merged.values())}, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the chosen parts, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for cpu_rows.json, growth.csv and growth.png")
    parser.add_argument("--only", default=",".join((*PARTS, "growth")), help="parts, with commas between them")
    parser.add_argument("--counts", default="100,1000,10000", help="numbers of conditions of the part growth")
    parser.add_argument("--commands", default=",".join(GROWING), help="commands of the part growth")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            if name == "growth":
                counts = [int(count) for count in options.counts.split(",")]
                rows = growth(Path(folder), counts, options.commands.split(","), options.out)
            else:
                rows = PARTS[name](Path(folder))
        merge(options.out / "cpu_rows.json", rows)
        for line in rows:
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
