"""Compare two `scores/` directories of the same groups: a student in-process and behind a server, for example.

    python examples/benchmarks/compare_scores.py scores_student scores_served

Prints the share of candidates with the same whole points, the mean difference, and the within-group pairwise
agreement. Groups that only one side could score are counted, never left out silently.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from stateplay_rl.reward_model.agreement import agreement_of
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.stores.scores import ScoreTable


def compare(one: Path, two: Path) -> dict[str, float | int | None]:
    """Measures over the groups that both directories list; shares are of those that both scored."""
    tables = []
    for folder in (one, two):
        read_manifest(folder, schema="scores", verify_files=True)
        tables.append(ScoreTable.read(folder / layout.SCORES))
    common = [group for group in tables[0] if group.group_id in tables[1]]
    pairs = [(group, tables[1].group(group.group_id)) for group in common]
    scored = [(a, b) for a, b in pairs if a.complete and b.complete]
    points = [
        (x, y) for a, b in scored for x, y in zip(a.scores, b.scores, strict=True) if x is not None and y is not None
    ]
    found = [agreement_of([s or 0.0 for s in a.scores], [s or 0.0 for s in b.scores]) for a, b in scored]
    return {
        "groups in both": len(pairs),
        "scored by both": len(scored),
        "scored by the first only": sum(a.complete and not b.complete for a, b in pairs),
        "scored by the second only": sum(b.complete and not a.complete for a, b in pairs),
        "same whole points": fmean(round(x) == round(y) for x, y in points) if points else None,
        "mean difference, points": fmean(abs(x - y) for x, y in points) if points else None,
        "pairwise agreement": sum(f.agreed for f in found) / max(1, sum(f.pairs for f in found)) if found else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("one", type=Path)
    parser.add_argument("two", type=Path)
    arguments = parser.parse_args()
    table = Table("measure", "value")
    for name, value in compare(arguments.one, arguments.two).items():
        table.add_row(name, "none" if value is None else f"{value:.4g}")
    Console().print(table)


if __name__ == "__main__":
    main()
