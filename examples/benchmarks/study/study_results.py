"""Tables and figures of a finished (or unfinished) study: CSV, Markdown, PNG.

    python examples/benchmarks/study/study_results.py --study study --out study/results

`curves.csv` holds a line per arm and evaluation, `final.csv` one per arm, `alarms.csv` one per alarm, `horizon.csv`
accuracies by latent slot, `tuning.csv` the tuning grids, `seconds.csv` the timing pass, `tables.md` what the page
quotes.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import study_figures
from study_reading import GPU_PARTS, Study
from study_tables import (
    efficiency_table,
    final_table,
    gains_table,
    horizon_table,
    judge_table,
    markdown,
    pairs_table,
    supervised_table,
)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line per row; columns are those of the first."""
    if not rows:
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _key(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("purpose", "method", "judge", "seed")}


def write_tables(study: Study, out: Path) -> None:
    """All CSV files."""
    arms = [r for r in study.results.values() if r["purpose"] in ("main", "judge")]
    point = ("batches", "candidates", "referee", "judge", "frozen_share", "luma", "distance")
    curves = [
        {**_key(r), **{name if name != "judge" else "judge_reward": round(p[name], 4) for name in point}}
        for r in arms
        for p in r["curve"]
    ]
    final = [{**_key(r), **_flat(r["final"])} for r in arms if r["final"]]
    columns = dict.fromkeys(name for row in final for name in row)
    alarms = [
        {**_key(r), **{n: a[n] for n in ("batch", "name", "severity", "value", "threshold")}, "heldout": "heldout" in a}
        for r in arms
        for a in r["alarms"]
    ]
    horizons = [
        {**_key(r), "frames": frames, "measure": name, "slot": slot + 1, "share_right": value}
        for r in arms
        if r["final"]
        for kind, frames in (("horizon", 33), ("long_horizon", 49))
        for name, values in r["final"][kind].items()
        for slot, value in enumerate(values)
    ]
    seconds = [{"method": m, "part": p, "seconds": round(s, 4)} for m, t in study.seconds_per_batch().items()
               for p, s in t.items()]  # fmt: skip
    tuning = [
        {
            "method": method,
            "setting": number,
            "chosen": number == line["chosen"],
            "overrides": json.dumps(row["overrides"]),
            "noise_level": row["noise_level"],
            "score": round(row["score"], 3),
        }
        for method, line in study.tuning.items()
        for number, row in enumerate(line["grid"])
    ]
    write_csv(out / "curves.csv", curves)
    write_csv(out / "final.csv", [{name: row.get(name) for name in columns} for row in final])
    write_csv(out / "alarms.csv", alarms)
    write_csv(out / "horizon.csv", horizons)
    write_csv(out / "seconds.csv", seconds)
    write_csv(out / "tuning.csv", tuning)


def _flat(final: Mapping[str, Any]) -> dict[str, float]:
    """Everything but the horizons, one column each."""
    row: dict[str, float] = {}
    for name, value in final.items():
        if isinstance(value, float):
            row[name] = round(value, 4)
        elif "horizon" not in name:
            row.update({f"{name}_{key}": round(number, 4) for key, number in value.items()})
    return row


def write_markdown(study: Study, out: Path) -> None:
    """`tables.md`: all that the page quotes."""
    base = study.results.get("main-base-s0")
    start = f"{base['curve'][0]['referee']:.1f}" if base else "-"
    seconds = [
        [m, *(f"{t.get(p, 0.0):.3f}" for p in (*GPU_PARTS, "judge"))] for m, t in study.seconds_per_batch().items()
    ]
    tuning = [
        [m, json.dumps(row["overrides"]), f"{row['noise_level']:g}", f"{row['score']:.1f}",
         "yes" if n == line["chosen"] else ""]
        for m, line in study.tuning.items()
        for n, row in enumerate(line["grid"])
    ]  # fmt: skip
    efficient = ["gain", "NFT", "Flow-GRPO", "ratio of candidates", "ratio of GPU seconds", "GRPO never there"]
    sections = [
        f"Start: {start} points; compared after {study.budget} candidates.\n",
        markdown(
            "Gains",
            ["method", "seeds", "gain", "by seed", "above shuffled", "best mean on the way"],
            gains_table(study),
        ),
        markdown("Pairs", ["method", "minus", "difference", "by seed"], pairs_table(study)),
        markdown(
            "NFT against Flow-GRPO, both without anchors",
            efficient,
            efficiency_table(study, "nft_no_anchor", "flow_grpo_no_anchor"),
        ),
        markdown("NFT against Flow-GRPO, both with anchors", efficient, efficiency_table(study, "nft", "flow_grpo")),
        markdown("To continued SFT's best", ["level", "method", "candidates", "GPU s"], supervised_table(study)),
        markdown("Seconds a batch", ["method", *GPU_PARTS, "judge"], seconds),
        markdown("Tuning", ["method", "setting", "noise", "score", "chosen"], tuning),
        markdown(
            "Final policies",
            ["method", "HP", "meter", "body", "luma", "saturation", "motion", "sharpness", "diversity", "deviation"],
            final_table(study),
        ),
        markdown("By slot, 33 frames", ["method", "part", *map(str, range(1, 9))], horizon_table(study, "horizon")),
        markdown(
            "By slot, 49 frames", ["method", "part", *map(str, range(1, 13))], horizon_table(study, "long_horizon")
        ),
        markdown("Judges", ["judge", "reward", "referee", "referee fell by 5", "alarms"], judge_table(study)),
    ]
    (out / "tables.md").write_text("\n".join(sections), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Read, write tables, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--study", type=Path, required=True, help="the --out of run_study.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of tables and figures")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    study = Study.read(options.study)
    write_tables(study, options.out)
    write_markdown(study, options.out)
    study_figures.draw_all(study, options.out)


if __name__ == "__main__":
    main()
