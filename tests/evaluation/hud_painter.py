"""Draws a HUD after its profile over a made-up scene: frames with known values, without any frame of the game."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stateplay_rl.evaluation.profile import BarProfile, HudProfile, load_profile

Picture = NDArray[np.uint8]
SF3 = load_profile("sf3")
PURPLE, BLUE = (115, 45, 168), (86, 146, 245)
FULL: Mapping[str, float] = {"p1_hp": 160, "p2_hp": 160, "p1_meter": 104, "p2_meter": 96, "timer": 99}


def real_clips() -> Path:
    """Folder of the real clips; tests that need it skip without."""
    default = Path(__file__).resolve().parents[2].parent / "shared" / "stateplay_clips"
    return Path(os.environ.get("STATEPLAY_CLIPS", default))


def scene(seed: int = 0, profile: HudProfile = SF3) -> Picture:
    """A soft, lively background: clouds of greens, browns and greys, darker than white."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(30, 170, (profile.height // 12 + 2, profile.width // 12 + 2, 3)).astype(np.uint8)
    soft = Image.fromarray(coarse).resize((profile.width, profile.height), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 4, (profile.height, profile.width, 1))
    return np.clip(np.asarray(soft, np.float64) + grain, 0, 255).astype(np.uint8)


def paint(values: Mapping[str, float], drains: Mapping[str, float] | None = None, seed: int = 0) -> Picture:
    """A native frame that shows `values` (points), with `drains` (points) still draining past them."""
    picture = scene(seed).astype(np.int64)
    for name, bar in SF3.bars.items():
        _paint_bar(picture, bar, values[name], (drains or {}).get(name, 0.0))
    _paint_timer(picture, int(values["timer"]))
    return np.clip(picture, 0, 255).astype(np.uint8)


def _paint_bar(picture: NDArray[np.int64], bar: BarProfile, points: float, drain: float) -> None:
    box = bar.box
    columns = np.arange(box.left, box.right)
    if bar.fills_from == "right":
        columns = columns[::-1]
    solid, end = round(points), round(points + drain)
    hp = box.height > 2
    colour = bar.solid[0 if points >= bar.points else 1 if points > 40 else 2] if hp else bar.solid[0]
    for light, dark in bar.frame.ends:
        picture[box.top - 2 : box.bottom + 2, light] = (248, 249, 245)
        picture[box.top - 1 : box.bottom + 1, dark] = (5, 5, 3)
    if not hp:
        low, high = (box.left, box.right + 6) if bar.fills_from == "right" else (box.left - 6, box.right)
        picture[209:219, low:high] = np.where(np.arange(low, high)[None, :, None] % 7 < 8, (40, 10, 85), 0)
        picture[210:216, box.left : box.right] = scene(99)[210:216, box.left : box.right]
    first, past = (box.left - 2, box.right + 2) if hp else (box.left, box.right)
    for line in bar.frame.rows:
        inside = hp and line.shade == "dark"
        picture[line.at, first + inside : past - inside] = BLUE if not hp and line.at in (216, 217) else line.colour
    if not hp:
        for row in bar.rim_rows:
            haze = picture[box.top, box.left : box.right] * 0.5 + np.array((90, 80, 120))
            picture[row, box.left : box.right] = haze
            picture[row, columns[:solid]] = (244, 225, 140)
    picture[box.top : box.bottom, columns[:solid]] = colour
    if bar.drain is not None:
        picture[box.top : box.bottom, columns[solid:end]] = bar.drain


def _paint_timer(picture: NDArray[np.int64], value: int) -> None:
    timer = SF3.timer
    assert timer is not None
    for (left, top), digit in zip(timer.cells, f"{value:02d}", strict=True):
        mask = np.array([[mark == "#" for mark in row] for row in timer.glyphs[digit]])
        around = np.zeros((timer.height + 2, timer.width + 2), np.bool_)
        for dy in range(3):
            for dx in range(3):
                around[dy : dy + timer.height, dx : dx + timer.width] |= mask
        cell = picture[top - 1 : top + timer.height + 1, left - 1 : left + timer.width + 1]
        cell[around] = timer.back
        share = np.linspace(0, 1, timer.height)[:, None, None]
        ink = (1 - share) * np.array(timer.ink[0]) + share * np.array(timer.ink[1])
        picture[top : top + timer.height, left : left + timer.width][mask] = np.broadcast_to(
            ink, (timer.height, timer.width, 3)
        )[mask]
