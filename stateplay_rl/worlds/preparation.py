"""What happens to a clip before any network sees it: first frame, held buttons, bins, prompt text.

Plain numpy and PIL: the command that checks 10,000 clips and its workers must not import torch.
Source of each rule: the data loader of the public training repository, pinned by the golden files.

Shapes: R action rows, K buttons (11), f latent slots, h w picture height and width.
"""

from __future__ import annotations

import html
from dataclasses import dataclass

import ftfy
import numpy as np
from numpy.typing import NDArray
from PIL import Image

BLANK_PROMPT = "SF3 Game."


@dataclass(frozen=True)
class HeldActions:
    """The held button signal and what the hold left out.

    Args:
        held_RK: float32 [R, K], row 0 of each window repeated over the window.
        dropped_presses: presses (non-zero entries) outside row 0 of their window: the model never sees them.
    """

    held_RK: NDArray[np.float32]
    dropped_presses: int


def prepare_first_frame(image: Image.Image, width: int, height: int) -> NDArray[np.uint8]:
    """Scale a picture to cover `width` x `height` (PIL bilinear), then crop its centre.

    Source: `crop_and_resize` of the training repository's image operator; its crop offset is the one of
    torchvision's `center_crop`: `round((size - target) / 2)`, half to even.

    Args:
        image: any PIL picture; converted to RGB first.
        width: picture width in pixels.
        height: picture height in pixels.

    Returns:
        uint8 RGB [h, w, 3].
    """
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    scale = max(width / rgb.width, height / rgb.height)
    size = (round(rgb.width * scale), round(rgb.height * scale))
    if size != rgb.size:
        rgb = rgb.resize(size, Image.Resampling.BILINEAR)
    left, top = round((size[0] - width) / 2), round((size[1] - height) / 2)
    return np.array(rgb, dtype=np.uint8)[top : top + height, left : left + width].copy()


def hold_actions(raw_RK: NDArray[np.generic], window: int) -> HeldActions:
    """Repeat row 0 of every window of `window` rows over that window.

    Args:
        raw_RK: [R, K] button values as read from the action table.
        window: rows per window (10 in the real data, 4 on arena).

    Returns:
        The held signal, and how many presses it drops.

    Raises:
        ValueError: `window` is not positive or `raw_RK` is not two-dimensional.
    """
    if window < 1 or raw_RK.ndim != 2:
        raise ValueError(f"window {window} must be positive and the table two-dimensional, not {raw_RK.shape}")
    rows = np.arange(raw_RK.shape[0])
    held_RK = raw_RK[rows - rows % window].astype(np.float32)
    dropped = int(np.count_nonzero(raw_RK[rows % window != 0]))
    return HeldActions(held_RK, dropped)


def action_bin_edges(rows: int, bins: int) -> tuple[tuple[int, int], ...]:
    """Row ranges [start, end) that an adaptive max pool of `rows` rows to `bins` bins reads.

    Bin i covers floor(i * R / n) to ceil((i + 1) * R / n): neighbours share a row when R / n is not whole.

    Raises:
        ValueError: `rows` or `bins` is not positive.
    """
    if rows < 1 or bins < 1:
        raise ValueError(f"rows {rows} and bins {bins} must be positive")
    return tuple((i * rows // bins, -((i + 1) * rows // -bins)) for i in range(bins))


def bin_actions(held_RK: NDArray[np.float32], bins: int) -> NDArray[np.float32]:
    """Max-pool the held signal over time to one row per latent slot.

    Source: `adaptive_max_pool1d` in the training repository's model function. The whole table is pooled, also
    when the video was cut (100 rows into the 25 slots of 97 frames): the model was trained that way.

    Args:
        held_RK: float32 [R, K].
        bins: f, the number of latent slots.

    Returns:
        float32 [f, K].
    """
    edges = action_bin_edges(held_RK.shape[0], bins)
    return np.stack([held_RK[start:end].max(axis=0) for start, end in edges]).astype(np.float32)


def usable_frames(frames: int, temporal: int = 4) -> int:
    """The longest video of 1 (mod `temporal`) frames within `frames` frames; 100 -> 97.

    Raises:
        ValueError: there is no frame, or `temporal` is not positive.
    """
    if frames < 1 or temporal < 1:
        raise ValueError(f"frames {frames} and temporal factor {temporal} must be positive")
    return (frames - 1) // temporal * temporal + 1


def clean_prompt(text: str) -> str:
    """The prompt as the text encoder gets it.

    Source: `basic_clean` and `whitespace_clean` of the public prompter: ftfy, HTML entities resolved twice,
    runs of white space to one blank. A prompt without any text becomes `SF3 Game.`, as in training.
    """
    fixed = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(fixed.split()) or BLANK_PROMPT


def is_blank(text: str) -> bool:
    """Whether nothing is left of a prompt after cleaning."""
    return not html.unescape(html.unescape(ftfy.fix_text(text))).split()
