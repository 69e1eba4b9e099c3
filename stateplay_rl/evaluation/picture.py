"""Plain measures of a video's picture: the usual cheats of a reward (frozen, over-exposed) show here first."""

from __future__ import annotations

import numpy as np

LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""ITU-R BT.601 weights."""


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
