"""Figures of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from study_reading import Study

LABELS = {
    "nft": "NFT",
    "nft_guard": "NFT, guard",
    "nft_joint": "NFT, module B + coupling",
    "nft_no_anchor": "NFT without anchors",
    "flow_grpo": "Flow-GRPO",
    "rejection": "best of 4",
    "sft_mixture": "continued SFT (same mixture)",
    "sft_true": "SFT on true clips",
    "shuffled": "shuffled rewards",
    "base": "base",
}
SHOWN = ("nft", "nft_joint", "flow_grpo", "rejection", "sft_true", "sft_mixture", "shuffled")
COLOURS = dict(zip(SHOWN, ("#0b6e99", "#5bb3d6", "#d1495b", "#edae49", "#2e8b57", "#8d99ae", "#444444"), strict=True))


def _axes(panels: int, width: float = 6.0) -> tuple[Any, list[Axes]]:
    figure, axes = plt.subplots(1, panels, figsize=(width * panels, 4.2), squeeze=False, constrained_layout=True)
    for axis in axes[0]:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def learning_curves(study: Study, target: Path) -> None:
    """Held-out referee score against candidates, and against GPU seconds; thin lines are seeds."""
    figure, (left, right) = _axes(2)
    for method in SHOWN:
        if not study.seeds(method):
            continue
        curves = study.curves(method)
        means_SP = curves.scores_SPN.mean(axis=2)
        seconds = study.gpu_seconds(method)
        for axis, factor in ((left, 1.0), (right, seconds)):
            if factor is None:
                continue
            x = curves.candidates_P * factor
            axis.plot(x, means_SP.T, color=COLOURS[method], alpha=0.3, linewidth=0.8)
            axis.plot(x, means_SP.mean(axis=0), color=COLOURS[method], linewidth=2, label=LABELS[method])
    left.set_xlabel("candidates (of continued SFT: draws on clips)")
    right.set_xlabel("GPU seconds, one process alone")
    left.set_ylabel("held-out referee score, points")
    if left.lines:
        left.legend(fontsize=8)
    figure.savefig(target, dpi=130)
    plt.close(figure)


def horizons(study: Study, target: Path) -> None:
    """Share of right bars by slot; the base was trained on eight slots after the first frame."""
    figure, axes = _axes(2)
    for axis, name, title in zip(axes, ("hp", "meter"), ("HP bars", "meter bars"), strict=True):
        for method in ("base", *SHOWN):
            finals = [r["final"] for r in study.seeds(method) if r["final"]]
            if not finals:
                continue
            values = 100 * np.mean([f["long_horizon"][name] for f in finals], axis=0)
            style: Mapping[str, Any] = {"color": COLOURS.get(method, "black"), "linestyle": "--"}
            if method in COLOURS:
                style = {"color": COLOURS[method]}
            axis.plot(np.arange(1, len(values) + 1), values, label=LABELS[method], **style)
        axis.axvline(8.5, color="grey", linestyle=":")
        axis.set_title(title)
        axis.set_xlabel("latent slot (4 frames each); right of the line: beyond the trained length")
    axes[0].set_ylabel("frames within a pixel of the truth, %")
    axes[0].legend(fontsize=8)
    figure.savefig(target, dpi=130)
    plt.close(figure)


def hackable_judges(study: Study, target: Path) -> None:
    """Judge's reward, referee and alarms over the batches of the runs with a bad judge."""
    results = study.of("judge")
    figure, axes = _axes(max(len(results), 1), width=4.2)
    for axis, result in zip(axes, results):
        batches = [p["batches"] for p in result["curve"]]
        axis.plot(batches, [p["judge"] for p in result["curve"]], color="#d1495b", label="judge, held out")
        axis.plot(batches, [p["referee"] for p in result["curve"]], color="#0b6e99", label="referee, held out")
        for name, batch in _first_alarms(result["alarms"]).items():
            axis.axvline(batch, color="grey", linestyle=":", linewidth=1)
            axis.text(batch, axis.get_ylim()[0], name, rotation=90, fontsize=6, va="bottom", ha="right")
        axis.set_title(result["judge"])
        axis.set_xlabel("batches")
    axes[0].set_ylabel("points")
    axes[0].legend(fontsize=8)
    figure.savefig(target, dpi=130)
    plt.close(figure)


def _first_alarms(alarms: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Batch after which each alarm was first raised; warnings are left out."""
    first: dict[str, int] = {}
    for alarm in alarms:
        if alarm["severity"] == "alarm":
            first.setdefault(str(alarm["name"]), int(alarm["batch"]) + 1)
    return first


def draw_all(study: Study, out: Path) -> None:
    """The study's PNG files."""
    learning_curves(study, out / "study-curves.png")
    horizons(study, out / "study-horizon.png")
    if study.of("judge"):
        hackable_judges(study, out / "study-judges.png")
