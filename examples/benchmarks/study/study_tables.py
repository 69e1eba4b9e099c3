"""The tables that the study's page quotes, as rows of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from study_reading import Study
from study_statistics import difference, efficiency, mean_gain

PAIRS = (
    ("nft", "sft_mixture"),
    ("nft", "rejection"),
    ("nft", "sft_true"),
    ("nft_no_anchor", "flow_grpo_no_anchor"),
    ("nft_no_anchor", "nft"),
    ("nft_guard", "nft"),
    ("nft_joint", "nft"),
    ("arena_default", "nft"),
    ("nft_group_deviation", "nft"),
    ("arena_group", "arena_default"),
    ("nft_own_noise", "nft"),
    ("nft_beta01", "nft"),
    ("nft_group8", "nft"),
    ("nft_full_schedule", "nft"),
    ("nft_eta_half", "nft"),
    ("nft_eta_09", "nft"),
    ("rejection_no_anchor", "rejection"),
)
LEVELS = (5.0, 10.0, 15.0, 20.0)
SUPERVISED = ("sft_mixture", "sft_true")


def gains_table(study: Study) -> list[list[str]]:
    """Method, seeds, start, gain with interval, each seed's gain, against shuffled rewards."""
    rows = []
    for method in study.methods():
        curves = study.curves(method)
        gains = curves.gains(study.budget)
        pair = study.paired_gains(method, "shuffled")
        against = "-" if pair is None or method == "shuffled" else difference(*pair).text()
        best = float((curves.scores_SPN.mean(axis=(0, 2)) - curves.scores_SPN[:, 0].mean()).max())
        each = ", ".join(f"{g:+.1f}" for g in gains.mean(axis=1))
        rows.append([method, str(len(gains)), mean_gain(gains).text(), each, against, f"{best:+.1f}"])
    return rows


def pairs_table(study: Study) -> list[list[str]]:
    """Differences of two methods' gains over the seeds that both have."""
    rows = []
    for one, two in PAIRS:
        pair = study.paired_gains(one, two)
        if pair is not None:
            each = ", ".join(f"{d:+.1f}" for d in (pair[0] - pair[1]).mean(axis=1))
            rows.append([one, two, difference(*pair).text(), each])
    return rows


def efficiency_table(study: Study, one: str, two: str) -> list[list[str]]:
    """Candidates and GPU seconds of two methods to equal gains, and their ratio."""
    if not (study.seeds(one) and study.seeds(two)):
        return []
    first, second = study.curves(one), study.curves(two)
    per_one, per_two = study.gpu_seconds(one), study.gpu_seconds(two)
    rows = []
    for level in LEVELS:
        found = efficiency(first, second, level)
        if found is None:
            continue
        ratio, never = found.ratio, f"{100 * found.two_never:.0f} %"
        cells = [
            f"+{level:.0f}",
            f"{found.one:.0f}",
            _candidates(found.two),
            _ratio(ratio.value, ratio.low, ratio.high),
        ]
        cost = "-"
        if per_one and per_two:
            factor = per_two / per_one
            cost = _ratio(ratio.value * factor, ratio.low * factor, ratio.high * factor)
        rows.append([*cells, cost, never])
    return rows


def _candidates(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "never"


def _ratio(value: float, low: float, high: float) -> str:
    shown = [f"{v:.1f}" if math.isfinite(v) else "more" for v in (value, low, high)]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def supervised_table(study: Study) -> list[list[str]]:
    """Candidates and GPU seconds of every method to the best mean gain of continued SFT."""
    rows = []
    for supervised in SUPERVISED:
        if not study.seeds(supervised):
            continue
        curves = study.curves(supervised)
        best = float((curves.scores_SPN.mean(axis=(0, 2)) - curves.scores_SPN[:, 0].mean()).max())
        for method in study.methods():
            if method in SUPERVISED or len(study.seeds(method)) < 2:
                continue
            found = efficiency(study.curves(method), curves, best) if best > 0 else None
            seconds = study.gpu_seconds(method)
            when = math.inf if found is None else found.one
            shown = "-" if seconds is None or not math.isfinite(when) else f"{when * seconds:.2f}"
            rows.append([f"{supervised} ({best:+.1f})", method, _candidates(when), shown])
    return rows


def markdown(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A titled Markdown table."""
    lines = [f"## {title}", "", f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


def final_table(study: Study) -> list[list[str]]:
    """Means over seeds of what the trained policies draw, against true clips."""
    rows = []
    for method in ["base", *study.methods()]:
        finals = [r["final"] for r in study.seeds(method) if r["final"]]
        if not finals:
            continue

        def mean(*path: str, finals: Sequence[Mapping[str, Any]] = finals) -> float:
            values = []
            for final in finals:
                value: Any = final
                for name in path:
                    value = value[name]
                values.append(float(value))
            return float(np.mean(values))

        shift = [mean("picture", n) - mean("picture_true", n) for n in ("luma", "saturation")]
        ratios = [mean("picture", n) / mean("picture_true", n) for n in ("motion", "sharpness")]
        parts = [mean("parts", n) for n in ("hp", "meter", "position")]
        rows.append(
            [
                method,
                *(f"{p:.0f}" for p in parts),
                *(f"{s:+.2f}" for s in shift),
                *(f"{r:.2f}" for r in ratios),
                f"{mean('diversity'):.2f}",
                f"{mean('score_deviation'):.1f}",
            ]
        )
    return rows


def horizon_table(study: Study, kind: str) -> list[list[str]]:
    """Share of right (frame, fighter) by slot, means over seeds.

    Args:
        kind: `horizon`: rollouts of the trained length; `long_horizon`: beyond it.
    """
    rows = []
    for method in ["base", *study.methods()]:
        finals = [r["final"] for r in study.seeds(method) if r["final"]]
        for name in ("hp", "meter", "body"):
            if finals:
                values = np.mean([f[kind][name] for f in finals], axis=0)
                rows.append([method, name, *(f"{100 * v:.0f}" for v in values)])
    return rows


def judge_table(study: Study) -> list[list[str]]:
    """Judges: referee and judge's reward before and after, the referee's best, and each alarm's first batch."""
    rows = []
    long_run = [r for r in study.of("main") if r["method"] == "nft_long"]
    for result in [*study.of("judge"), *long_run]:
        curve = result["curve"]
        best = max(curve, key=lambda p: float(p["referee"]))
        fallen = next((str(p["batches"]) for p in curve if p["batches"] > best["batches"]
                       and best["referee"] - p["referee"] > 5.0), "never")  # fmt: skip
        first: dict[str, int] = {}
        for alarm in result["alarms"]:
            first.setdefault(f"{alarm['name']}{' !' if alarm['severity'] == 'alarm' else ''}", int(alarm["batch"]) + 1)
        rows.append(
            [
                result["judge"],
                f"{curve[0]['judge']:.1f} -> {curve[-1]['judge']:.1f}",
                f"{curve[0]['referee']:.1f} -> {best['referee']:.1f} ({best['batches']}) -> {curve[-1]['referee']:.1f}",
                fallen,
                ", ".join(f"{name} {batch}" for name, batch in sorted(first.items(), key=lambda x: x[1])) or "none",
            ]
        )
    return rows
