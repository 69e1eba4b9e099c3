"""Plain measures of a video's picture: the usual cheats of a reward (frozen, over-exposed) show here first.

Shapes: T frames, h w picture height and width, C = 3 colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stateplay_rl.evaluation.horizon import spans_of

LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""ITU-R BT.601 weights."""

MEASURES = ("luma", "saturation", "motion", "sharpness", "flicker")
_SHARPNESS_EVERY = 4
"""Sharpness is taken of every fourth frame: a real video has 40 million pixels."""
_SSIM_WINDOW = 8
_SSIM_C1, _SSIM_C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def measure_picture(frames_ThwC: np.ndarray) -> dict[str, float]:
    """Luma, saturation and motion of a video.

    Args:
        frames_ThwC: uint8 RGB [T, h, w, 3].

    Returns:
        `luma`: mean, 0..255. `saturation`: mean of max - min over the colour channels, 0..255. `motion`: mean
        absolute luma difference of neighbouring frames, levels per frame; 0 for one frame.
    """
    # Channel by channel: a reduction over a last axis of three is several times slower.
    red, green, blue = (frames_ThwC[..., channel].astype(np.float32) for channel in range(3))
    luma_Thw = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    motion = float(np.abs(np.diff(luma_Thw, axis=0)).mean()) if len(frames_ThwC) > 1 else 0.0
    largest, smallest = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    return {"luma": float(luma_Thw.mean()), "saturation": float((largest - smallest).mean()), "motion": motion}


def measure_detail(frames_ThwC: np.ndarray) -> dict[str, float]:
    """Sharpness and flicker of a video.

    Args:
        frames_ThwC: uint8 RGB [T, h, w, 3].

    Returns:
        `sharpness`: mean absolute luma difference of neighbouring pixels, levels; blur lowers it. `flicker`: mean
        absolute second difference over time of a frame's mean luma, levels per frame; 0 for fewer than three frames.
    """
    if len(frames_ThwC) == 0:
        raise ValueError("a video without frames has no picture")
    steps, means = [], []
    for t, frame_hwC in enumerate(frames_ThwC):
        means.append(float(frame_hwC.mean(axis=(0, 1), dtype=np.float64) @ LUMA))
        if t % _SHARPNESS_EVERY == 0:  # one at a time: a real video in float32 has half a gigabyte
            luma_hw = frame_hwC.astype(np.float32) @ LUMA
            steps.append(0.5 * (np.abs(np.diff(luma_hw, axis=0)).mean() + np.abs(np.diff(luma_hw, axis=1)).mean()))
    flicker = float(np.abs(np.diff(means, n=2)).mean()) if len(means) > 2 else 0.0
    return {"sharpness": float(np.mean(steps)), "flicker": flicker}


def measure_parts(frames_ThwC: np.ndarray) -> tuple[dict[str, float], ...]:
    """All measures of every part of a video (`spans_of`): pictures fade towards the end of a rollout.

    Args:
        frames_ThwC: uint8 RGB [T, h, w, 3].
    """
    spans = spans_of(len(frames_ThwC))
    return tuple(
        {**measure_picture(frames_ThwC[start:end]), **measure_detail(frames_ThwC[start:end])} for start, end in spans
    )


@dataclass(frozen=True)
class PictureDrift:
    """How far generated videos depart from the real clips of the same conditions.

    Args:
        generated: mean of each measure over the generated videos.
        real: mean over the real clips.
        ratio: generated / real; None where the real one is 0.
        conditions: how many conditions have both.
    """

    generated: dict[str, float]
    real: dict[str, float]
    ratio: dict[str, float | None]
    conditions: int


def picture_drift(
    generated: Mapping[str, Sequence[Mapping[str, float]]], real: Mapping[str, Mapping[str, float]]
) -> PictureDrift | None:
    """Drift of picture measures, over the conditions that have a real clip; each condition counts once.

    Args:
        generated: measures of each video, by condition.
        real: measures of the real clip, by condition.

    Returns:
        None where no condition has both.
    """
    both = sorted(name for name in generated if generated[name] and name in real)
    if not both:
        return None
    names = [m for m in MEASURES if all(m in real[c] and all(m in v for v in generated[c]) for c in both)]
    ours = {m: float(np.mean([np.mean([v[m] for v in generated[c]]) for c in both])) for m in names}
    theirs = {m: float(np.mean([real[c][m] for c in both])) for m in names}
    ratio = {m: ours[m] / theirs[m] if theirs[m] else None for m in names}
    return PictureDrift(ours, theirs, ratio, len(both))


def psnr(frames_ThwC: np.ndarray, reference_ThwC: np.ndarray) -> float | None:
    """Peak signal-to-noise ratio in dB against a pixel reference (a VAE's round trip, a replayed clip).

    Of no use between a candidate and the real clip: the opponent may do something else.

    Returns:
        None for equal videos, whose ratio has no bound.

    Raises:
        ValueError: other shapes.
    """
    _same_shape(frames_ThwC, reference_ThwC)
    error = np.mean(
        [np.square(a.astype(np.float64) - b).mean() for a, b in zip(frames_ThwC, reference_ThwC, strict=True)]
    )
    return None if error == 0.0 else float(10.0 * np.log10(255.0**2 / error))


def ssim(frames_ThwC: np.ndarray, reference_ThwC: np.ndarray) -> float:
    """Structural similarity of the luma, -1..1, over 8x8 blocks (Wang et al. 2004, without the Gaussian window).

    Raises:
        ValueError: other shapes, or smaller than a block.
    """
    _same_shape(frames_ThwC, reference_ThwC)
    if min(frames_ThwC.shape[1:3]) < _SSIM_WINDOW:
        raise ValueError(f"frames must be at least {_SSIM_WINDOW} pixels high and wide, not {frames_ThwC.shape}")
    return float(np.mean([_ssim(a, b) for a, b in zip(frames_ThwC, reference_ThwC, strict=True)]))


def _ssim(frame_hwC: np.ndarray, reference_hwC: np.ndarray) -> float:
    a, b = _blocks(frame_hwC), _blocks(reference_hwC)
    mean_a, mean_b = a.mean(axis=1), b.mean(axis=1)
    shared = ((a - mean_a[:, None]) * (b - mean_b[:, None])).mean(axis=1)
    above = (2 * mean_a * mean_b + _SSIM_C1) * (2 * shared + _SSIM_C2)
    below = (mean_a**2 + mean_b**2 + _SSIM_C1) * (a.var(axis=1) + b.var(axis=1) + _SSIM_C2)
    return float((above / below).mean())


def _blocks(frame_hwC: np.ndarray) -> np.ndarray:
    """Luma in whole 8x8 blocks: float64 [blocks, 64]."""
    luma_hw = frame_hwC.astype(np.float64) @ LUMA
    rows, columns = luma_hw.shape[0] // _SSIM_WINDOW, luma_hw.shape[1] // _SSIM_WINDOW
    cut = luma_hw[: rows * _SSIM_WINDOW, : columns * _SSIM_WINDOW]
    parts = cut.reshape(rows, _SSIM_WINDOW, columns, _SSIM_WINDOW).swapaxes(1, 2)
    blocks: np.ndarray = parts.reshape(rows * columns, -1)
    return blocks


def _same_shape(frames_ThwC: np.ndarray, reference_ThwC: np.ndarray) -> None:
    if frames_ThwC.shape != reference_ThwC.shape or len(frames_ThwC) == 0:
        raise ValueError(f"videos of shape {frames_ThwC.shape} and {reference_ThwC.shape} cannot be compared")
