"""Draws a trajectory: uint8 RGB [T, 64, 96, 3], about a millisecond a clip."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena import layout as lay
from stateplay_rl.arena.canvas import CANVAS_WIDTH, Sprite, pack
from stateplay_rl.arena.sprites import fighter_sprites, pose_of, projectile_sprite, spark_sprite
from stateplay_rl.arena.state import (
    CROUCH,
    DOWN,
    NO_PROJECTILE,
    SPARK_BLOCK,
    SPARK_NONE,
    FighterFrame,
    Trajectory,
)

# Sprites may reach over the border: frames are drawn with a margin and cropped.
MARGIN = CANVAS_WIDTH // 2
BOTTOM_MARGIN = 8
SPARK_DROP = {CROUCH: 4, DOWN: 6}


@cache
def background() -> NDArray[np.uint32]:
    """The empty stage with its HUD frame, packed uint32 [64, 96] plus margins; low chroma, low contrast."""
    frame = np.zeros((lay.HEIGHT + BOTTOM_MARGIN, lay.WIDTH + 2 * MARGIN, 3), np.uint8)
    stage = frame[: lay.HEIGHT, MARGIN : MARGIN + lay.WIDTH]
    horizon = lay.FLOOR_ROW - 8
    share = np.linspace(0, 1, horizon - lay.HUD_ROWS)[:, None, None]
    stage[lay.HUD_ROWS : horizon] = np.array((118, 132, 146)) * (1 - share) + np.array((206, 200, 184)) * share
    rows, columns = np.mgrid[: lay.HEIGHT, : lay.WIDTH]
    sun = (rows - 34.5) ** 2 + (columns - 47.5) ** 2 <= 13.4**2
    stage[sun & (rows < horizon) & (rows >= lay.HUD_ROWS)] = (222, 214, 196)
    for peak, top, slope in ((14, 30, 1.1), (41, 38, 0.8), (82, 28, 0.9)):
        hill = (rows >= top + slope * np.abs(columns - peak)) & (rows < horizon)
        stage[hill] = (146, 150, 152)
    stage[horizon:] = (150, 140, 124)
    stage[horizon : horizon + 2] = (126, 118, 106)
    for centre in range(-72, 169, 24):
        boards = np.abs(columns - (48 + (centre - 48) * (1 + (rows - horizon) / 24))) < 0.6
        stage[boards & (rows >= horizon + 2)] = (136, 126, 112)
    # The floor line on which the feet stand.
    stage[lay.FLOOR_ROW : lay.FLOOR_ROW + 2] = (96, 84, 72)
    stage[: lay.HUD_ROWS] = lay.HUD_BACK
    stage[lay.HUD_ROWS - 1] = (8, 8, 12)
    for bar in (*lay.HP_BARS, *lay.METER_BARS):
        stage[bar.top - 1 : bar.bottom + 1, bar.left - 1 : bar.left + bar.length + 1] = lay.BAR_FRAME
    return pack(frame)


def _word(colour: lay.Colour) -> np.uint32:
    return np.uint32(pack(np.array(colour, np.uint8))[()])


@cache
def _digits(value: int) -> NDArray[np.uint32]:
    """Both digits of the clock, packed uint32 [7, 10]."""
    marks = np.zeros((lay.DIGIT_ROWS, lay.TIMER_LEFT[1] - lay.TIMER_LEFT[0] + lay.DIGIT_COLUMNS), np.bool_)
    for left, digit in zip(lay.TIMER_LEFT, divmod(value, 10), strict=True):
        column = left - lay.TIMER_LEFT[0]
        marks[:, column : column + lay.DIGIT_COLUMNS] = lay.digit_ink(digit)
    return np.where(marks, _word(lay.TIMER_INK), _word(lay.HUD_BACK))


def _draw_bar(
    frames: NDArray[np.uint32], bar: lay.Bar, points_T: NDArray[np.int16], per_pixel: int, full: lay.Colour
) -> None:
    pixels_T1 = (points_T // per_pixel)[:, None]
    column = np.arange(bar.length)
    distance = column if bar.fills_from == "left" else column[::-1]
    row_Tw = np.where(distance[None] < pixels_T1, _word(full), _word(lay.BAR_EMPTY))
    left = MARGIN + bar.left
    frames[:, bar.top : bar.bottom, left : left + bar.length] = row_Tw[:, None]


def _draw_hud(frames: NDArray[np.uint32], trajectory: Trajectory) -> None:
    hp, meter = trajectory.hp, trajectory.meter
    for player in (0, 1):
        _draw_bar(frames, lay.HP_BARS[player], hp[:, player], lay.HP_PER_PIXEL, lay.HP_FULL)
        _draw_bar(frames, lay.METER_BARS[player], meter[:, player], lay.METER_PER_PIXEL, lay.METER_FULL)
    left = MARGIN + lay.TIMER_LEFT[0]
    rows = slice(lay.TIMER_TOP, lay.TIMER_TOP + lay.DIGIT_ROWS)
    for frame, value in zip(frames, trajectory.timer_T.tolist(), strict=True):
        digits = _digits(value)
        frame[rows, left : left + digits.shape[1]] = digits


def _blit(frame: NDArray[np.uint32], sprite: Sprite, x: int, y: int) -> None:
    """Draw a sprite with its feet `y` pixels above the floor line and its centre at column `x`."""
    height, width = sprite.mask_hw.shape
    bottom = lay.FLOOR_ROW - y + sprite.bottom
    left = MARGIN + x + sprite.left
    np.copyto(frame[bottom - height : bottom, left : left + width], sprite.pixels_hw, where=sprite.mask_hw)


def _draw_stage(frame: NDArray[np.uint32], pair: tuple[FighterFrame, FighterFrame]) -> None:
    sprites = [
        fighter_sprites(player, now.facing, now.stance, pose_of(now, won=other.hp == 0))
        for player, (now, other) in enumerate((pair, pair[::-1]))
    ]
    for now, sprite in zip(pair, sprites, strict=True):
        _blit(frame, sprite.limbs, now.x, now.y)
    for now in pair:
        if now.spark != SPARK_NONE:
            drop = SPARK_DROP.get(now.stance, 0)
            _blit(frame, spark_sprite(now.spark == SPARK_BLOCK), now.x + 4 * now.facing, now.y - drop)
        if now.projectile_x != NO_PROJECTILE:
            _blit(frame, projectile_sprite(now.facing), now.projectile_x, 0)
    for now, sprite in zip(pair, sprites, strict=True):
        _blit(frame, sprite.core, now.x, now.y)


def render(trajectory: Trajectory) -> NDArray[np.uint8]:
    """Draw every frame of a trajectory: uint8 RGB [T, 64, 96, 3]."""
    frames = np.repeat(background()[None], len(trajectory.timer_T), axis=0)
    _draw_hud(frames, trajectory)
    rows = trajectory.values_TPF.tolist()
    for t, (one, two) in enumerate(rows):
        pair = (FighterFrame(*one), FighterFrame(*two))
        _draw_stage(frames[t], pair)
    picture_ThwC = np.empty((len(frames), lay.HEIGHT, lay.WIDTH, 3), np.uint8)
    bytes_Thw4 = frames.view(np.uint8).reshape(*frames.shape, 4)[:, : lay.HEIGHT, MARGIN : MARGIN + lay.WIDTH]
    for channel in range(3):
        picture_ThwC[..., channel] = bytes_Thw4[..., channel]
    return picture_ThwC
