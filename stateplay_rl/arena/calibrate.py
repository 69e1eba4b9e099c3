"""Measures both ends of the referee's scale: ``python -m stateplay_rl.arena.calibrate --clips 2000``.

The engine's own rendering must give 100, a video frozen on its first frame 0; glitched twins lie between.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from stateplay_rl.arena.dataset import ArenaCondition, draw_conditions, render, simulate
from stateplay_rl.arena.referee import RefereeReport, judge_video
from stateplay_rl.arena.state import FPS, Glitches
from stateplay_rl.stores.video import decode_mp4, encode_mp4

Video = NDArray[np.uint8]


def through_mp4(video_ThwC: Video) -> Video:
    """The video after encoding and decoding."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        encode_mp4(path, video_ThwC, FPS)
        return decode_mp4(path)


def frozen(video_ThwC: Video) -> Video:
    """The video frozen on its first frame."""
    return np.repeat(video_ThwC[:1], len(video_ThwC), axis=0)


def _twin(glitches: Glitches) -> Callable[[ArenaCondition], Video]:
    return lambda condition: render(simulate(condition, glitches))


VARIANTS: dict[str, Callable[[ArenaCondition], Video]] = {
    "engine": _twin(Glitches()),
    "engine through mp4": lambda condition: through_mp4(render(simulate(condition))),
    "frozen first frame": lambda condition: frozen(render(simulate(condition))),
    "hits_drain_nothing": _twin(Glitches(hits_drain_nothing=True)),
    "specials_cost_nothing": _twin(Glitches(specials_cost_nothing=True)),
    "special_without_meter": _twin(Glitches(special_without_meter=True)),
    "both displays": _twin(Glitches(hits_drain_nothing=True, specials_cost_nothing=True)),
    "all three": _twin(Glitches(True, True, True)),
}


def measure(conditions: list[ArenaCondition], variant: str) -> list[RefereeReport]:
    """Reports of one variant of every condition."""
    reports = []
    for condition in conditions:
        first_frame = render(simulate(condition))[0]
        video = VARIANTS[variant](condition)
        reports.append(judge_video(first_frame, condition.held_buttons, condition.prompt, video))
    return reports


def main(
    clips: Annotated[int, typer.Option(help="Conditions to measure.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the conditions.")] = 0,
) -> None:
    """Print the referee's totals for the engine, the frozen frame and the glitched twins."""
    conditions = draw_conditions(clips, seed)
    table = Table("variant", "total", "lowest", "highest", "frozen display", "unreadable", "below 99.9")
    for variant in VARIANTS:
        reports = measure(conditions, variant)
        totals = np.array([report.total for report in reports])
        table.add_row(
            variant,
            f"{totals.mean():.2f}",
            f"{totals.min():.1f}",
            f"{totals.max():.1f}",
            f"{np.mean([report.frozen_display for report in reports]):.3f}",
            f"{np.mean([not report.readable for report in reports]):.3f}",
            f"{(totals < 99.9).mean():.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
