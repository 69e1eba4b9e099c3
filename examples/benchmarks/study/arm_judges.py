"""Who scores the study's candidates: the referee, and judges that are worse in one known way.

Shapes: G groups, K candidates, T frames, h w picture height and width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from arm_data import ClipSet

from stateplay_rl.arena.pixels import read_video, true_reading
from stateplay_rl.arena.referee import BAR_TOLERANCE, BODY_TOLERANCE, RefereeReport, compare
from stateplay_rl.arena.state import WINDOW_FRAMES, Trajectory
from stateplay_rl.evaluation.picture import measure_picture
from stateplay_rl.nft.randomness import DrawKey
from stateplay_rl.stages.candidates import picture_spread
from stateplay_rl.stages.train_nft.samples import JudgedGroup

NOISE_POINTS = 20.0
POSITION_POINTS = 30.0
HALF_BRIGHT_LEVELS = 2.0
"""A video that is so many levels (of 255) brighter than its first frame gets half of the points."""


@dataclass(frozen=True)
class Seen:
    """What a judge may look at: referee scores [G, K], and how much brighter than its first frame a video is [G, K]."""

    scores_GK: np.ndarray
    brighter_GK: np.ndarray
    seed: int

    def rng(self, purpose: str) -> np.random.Generator:
        """Draws of this batch."""
        return np.random.default_rng(DrawKey(self.seed, purpose).seed())


def _referee(seen: Seen) -> np.ndarray:
    return seen.scores_GK


def _noisy(seen: Seen) -> np.ndarray:
    return seen.scores_GK + NOISE_POINTS * seen.rng("judge_noise").standard_normal(seen.scores_GK.shape)


def _position(seen: Seen) -> np.ndarray:
    """Likes what is shown first; the order is drawn per group, as the product's payload does."""
    groups, candidates = seen.scores_GK.shape
    ladder = np.linspace(POSITION_POINTS / 2, -POSITION_POINTS / 2, candidates)
    rng = seen.rng("judge_order")
    return seen.scores_GK + np.stack([ladder[rng.permutation(candidates)] for _ in range(groups)])


def _bright(seen: Seen) -> np.ndarray:
    """100 b / (b + 2): steep where honest videos lie (b about 0.5), and never satisfied."""
    brighter_GK = np.maximum(seen.brighter_GK, 0.0)
    return 100.0 * brighter_GK / (brighter_GK + HALF_BRIGHT_LEVELS)


def _bright_half(seen: Seen) -> np.ndarray:
    return 0.5 * seen.scores_GK + 0.5 * _bright(seen)


JUDGES: Mapping[str, Callable[[Seen], np.ndarray]] = {
    "referee": _referee,
    "noisy": _noisy,
    "position": _position,
    "bright": _bright,
    "bright_half": _bright_half,
}


@dataclass(frozen=True)
class Judged:
    """Scores in points [G, K] of a judge, and the referee's reports behind them, group by group."""

    scores_GK: np.ndarray
    reports: tuple[tuple[RefereeReport, ...], ...]

    @property
    def referee_scores(self) -> np.ndarray:
        """The referee's own scores."""
        return np.array([[report.score for report in row] for row in self.reports])

    @property
    def frozen_share(self) -> float:
        """Share of videos with a display that stands still where it should not."""
        return float(np.mean([report.frozen_display for row in self.reports for report in row]))


def _mean_luma(frames: np.ndarray) -> float:
    return float(frames.mean(axis=(0, 1, 2)) @ np.array((0.299, 0.587, 0.114)))


def judge_videos(judge: str, videos: np.ndarray, truths: Sequence[Trajectory], seed: int) -> Judged:
    """Scores of a batch.

    Args:
        videos: uint8 [G, K, T, h, w, 3].
        truths: the true trajectory of each group.
        seed: of the judge's own noise.
    """
    reports = tuple(
        tuple(compare(video, truth) for video in group) for group, truth in zip(videos, truths, strict=True)
    )
    scores_GK = np.array([[report.score for report in row] for row in reports])
    brighter_GK = np.zeros_like(scores_GK)
    if judge.startswith("bright"):
        brighter_GK = np.array([[_mean_luma(v[1:]) - _mean_luma(v[:1]) for v in group] for group in videos])
    points = JUDGES[judge](Seen(scores_GK, brighter_GK, seed))
    return Judged(np.clip(points, 0.0, 100.0), reports)


def judged_groups(
    judged: Judged, videos: np.ndarray, clips: ClipSet, rows: Sequence[int], batch: int
) -> list[JudgedGroup]:
    """A batch's verdicts in the form that the stage's own sample builder, metrics and monitors take."""
    groups = []
    for g, row in enumerate(rows):
        measures = [measure_picture(video) for video in videos[g]]
        picture = {name: float(np.mean([m[name] for m in measures])) for name in measures[0]}
        picture["diversity"] = picture_spread(list(videos[g]))
        condition = clips.batch.condition_ids[row]
        groups.append(
            JudgedGroup(
                group_id=f"{batch}-{condition}",
                condition_id=condition,
                mechanics_class=clips.conditions[row].mechanics_class,
                latent_frames=clips.batch.latent_frames,
                scores=tuple(float(s) for s in judged.scores_GK[g]),
                reason=None,
                line={"status": "scored"},
                picture=picture,
                picture_real=clips.pictures[row],
                referee={"status": "scored", "scores": [float(s) for s in judged.referee_scores[g]]},
            )
        )
    return groups


def horizon(video_ThwC: np.ndarray, truth: Trajectory) -> dict[str, list[float]]:
    """Share of (frame, fighter) that is right, by latent slot 1, 2, ...: within the referee's tolerances.

    Returns:
        `hp`, `meter`, `body` (x within the tolerance) and `stance`, each a value per slot, 0..1.
    """
    seen, true = read_video(video_ThwC), true_reading(truth)
    right = {
        "hp": np.abs(np.round(seen.hp_TP) - true.hp_TP) <= BAR_TOLERANCE,
        "meter": np.abs(np.round(seen.meter_TP) - true.meter_TP) <= BAR_TOLERANCE,
        "body": np.abs(seen.x_TP - true.x_TP) <= BODY_TOLERANCE,
        "stance": seen.stance_TP == true.stance_TP,
    }
    return {name: values[1:].reshape(-1, WINDOW_FRAMES, 2).mean(axis=(1, 2)).tolist() for name, values in right.items()}
