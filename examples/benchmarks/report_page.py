"""How large a report over many groups gets, how long it takes to write, and how soon a browser shows it.

    python examples/benchmarks/report_page.py --groups 10000 --out report_page

Groups are arena's, many copies of a few, with drawn scores and details like a referee's. Needs a Chromium. Writes
`report_page/report_page.json`: bytes of the page, groups whose videos are inside it, seconds of CPU and of the clock
that `sprl report` took, and per opening the seconds from the navigation to the first drawn group and until a filter
has been applied.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from examples.benchmarks.cpu_inputs import seal_scores
from examples.browser import Browser, find_chromium
from examples.drills.arena_groups import CANDIDATES, RolloutWorld, write_groups
from stateplay_rl.cli.main import main as sprl
from stateplay_rl.stores import layout
from stateplay_rl.stores.scores import ScoreRow

OPENINGS = 5
FIRST_CARD = "document.querySelector('.gallery .vcard') !== null"
SINCE_NAVIGATION = "performance.now() / 1000"
FILTER = """(() => { const menu = document.querySelector('[data-filter=order]'), start = performance.now();
menu.value = 'spread'; menu.dispatchEvent(new Event('change', {bubbles: true}));
return (performance.now() - start) / 1000; })()"""


def write_scores(out: Path, groups: Path, count: int) -> None:
    """A sealed `scores/` directory: drawn scores, and the numbers that a referee would give with them."""
    draw = random.Random(0)
    rows, lines = [], []
    for number in range(count):
        name = f"g{number:05d}"
        scores = [round(draw.uniform(0, 100), 1) for _ in range(CANDIDATES)]
        rows += [ScoreRow(name, k, score, "scored", None, "referee", "0" * 64, None) for k, score in enumerate(scores)]
        details = {"candidates": [{"events_right": draw.randrange(9), "frozen_display": False} for _ in scores]}
        lines.append({"group_id": name, "mechanics_class": "normal", "scores": scores, "details": details})
    seal_scores(out, groups, rows, RolloutWorld(), lines)


def openings(page: Path, program: str) -> list[dict[str, float]]:
    """Seconds of each opening; the first one finds a cold browser."""
    found = []
    with tempfile.TemporaryDirectory() as folder, Browser(program, Path(folder)) as browser:
        browser.look(1400)
        for _ in range(OPENINGS):
            browser.open(page)
            browser.until(FIRST_CARD)
            drawn = float(browser.value(SINCE_NAVIGATION))
            found.append({"first_group": round(drawn, 2), "filtered": round(float(browser.value(FILTER)), 3)})
            browser.problems.clear()
    return found


def main(arguments: list[str] | None = None) -> int:
    """Builds, writes, opens; prints and stores the figures. 2 without a browser."""
    parser = argparse.ArgumentParser(description="A report over many groups in a real browser.")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    program = find_chromium()
    if program is None:
        print("no Chromium found: apt-get install chromium, or set CHROMIUM", file=sys.stderr)
        return 2
    groups, scores, report = (options.out / name for name in ("groups", "scores", "report"))
    write_groups(groups, options.groups)
    write_scores(scores, groups, options.groups)
    started, clock = time.process_time(), time.monotonic()
    code = sprl(["report", str(scores), "--out", str(report), "--set", "png=false", "-q"])
    if code:
        return code
    result = {
        "groups": options.groups,
        "write_cpu_seconds": round(time.process_time() - started, 1),
        "write_seconds": round(time.monotonic() - clock, 1),
        "page_bytes": (report / layout.REPORT).stat().st_size,
        "openings": openings(report / layout.REPORT, program),
    }
    text = json.dumps(result, indent=1)
    (options.out / "report_page.json").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
