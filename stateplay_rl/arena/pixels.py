"""Reads game state off pixels: bar lengths, body positions, stances, the clock.

Sub-pixel throughout: a bar's length is an integral of luma, a body's place the centroid of its torso
colour. Shapes: T frames, h w picture height and width, P = 2 players.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena import layout as lay
from stateplay_rl.arena.state import AIR, CROUCH, DOWN, MIN_GAP, STAND, X_MAX, X_MIN, FirstState, Trajectory
from stateplay_rl.errors import InputError

Floats = NDArray[np.float32]

# Torso colour: full weight within 40 of the true colour, none beyond 90 (RGB distance, 0..441).
COLOUR_NEAR = 40.0
COLOUR_FAR = 90.0
# A torso has 64 to 96 pixels; less than a third of the smallest is no body.
MIN_TORSO_PIXELS = 20.0
# Half size of the window around the first centroid: stray pixels elsewhere do not pull.
BODY_WINDOW = 13.0
# Horizontal deviation of an upright torso is 2.3 px, of a lying one 4.6, of a smear more.
LYING_SPREAD = 3.4
SMEARED_SPREAD = 6.5
# Torso centre above the floor: crouching 10, standing 15, jumping 21 and more.
CROUCH_BELOW = 12.5
STAND_BELOW = 18.0
# Mean disagreement of a bar's columns with a clean step at the length read.
MAX_BAR_RESIDUAL = 0.25
LUMA = np.array((0.299, 0.587, 0.114), np.float32)


@dataclass(frozen=True)
class Reading:
    """What a video shows.

    Args:
        hp_TP: Length of the HP bars in pixels, sub-pixel, 0..40 (1 pixel = 4 points).
        meter_TP: Length of the meter bars in pixels, 0..20.
        x_TP: Body centre, pixels from the left (NaN where no body is found).
        height_TP: Centre of the torso above the floor, pixels (NaN likewise).
        stance_TP: STAND, CROUCH, AIR or DOWN.
        hud_ok_T: All four bars are clean steps.
        bodies_ok_T: Both bodies are found and compact.
    """

    hp_TP: Floats
    meter_TP: Floats
    x_TP: Floats
    height_TP: Floats
    stance_TP: NDArray[np.int64]
    hud_ok_T: NDArray[np.bool_]
    bodies_ok_T: NDArray[np.bool_]

    @property
    def readable(self) -> NDArray[np.bool_]:
        """Frames in which everything could be read: bool [T]."""
        return self.hud_ok_T & self.bodies_ok_T


def _check(frames_ThwC: NDArray[np.uint8]) -> None:
    if frames_ThwC.dtype != np.uint8 or frames_ThwC.shape[1:] != (lay.HEIGHT, lay.WIDTH, 3):
        raise InputError(
            f"not arena pictures: {frames_ThwC.dtype} {frames_ThwC.shape}, "
            f"expected uint8 [T, {lay.HEIGHT}, {lay.WIDTH}, 3]"
        )


def _luma_of(colour: lay.Colour) -> float:
    return float(np.dot(np.array(colour, np.float32), LUMA))


def read_bar(frames_ThwC: NDArray[np.uint8], bar: lay.Bar, full: lay.Colour) -> tuple[Floats, Floats]:
    """Length of a bar in pixels [T] and its residual [T]: how far its columns are from a clean step."""
    # Inner rows only: codec and VAE blur the outer ones into the frame.
    inner = frames_ThwC[:, bar.top + 1 : bar.bottom - 1, bar.left : bar.left + bar.length].astype(np.float32)
    luma_Tw = (inner @ LUMA).mean(axis=1)
    empty = _luma_of(lay.BAR_EMPTY)
    fill_Tw = (luma_Tw - empty) / (_luma_of(full) - empty)
    # Twice the slope around the middle: a loss of contrast does not add up over the columns.
    fill_Tw = np.clip((fill_Tw - 0.25) / 0.5, 0.0, 1.0)
    if bar.fills_from == "right":
        fill_Tw = fill_Tw[:, ::-1]
    length_T = fill_Tw.sum(axis=1)
    step_Tw = np.clip(length_T[:, None] - np.arange(bar.length, dtype=np.float32), 0.0, 1.0)
    return length_T, np.abs(fill_Tw - step_Tw).mean(axis=1)


def read_body(stage_CThw: Floats, player: int) -> tuple[Floats, Floats, Floats, Floats]:
    """x [T], torso height above the floor [T], horizontal deviation [T] and torso pixels [T].

    Args:
        stage_CThw: float32 RGB planes of the rows below the HUD.
        player: 0 or 1.
    """
    red, green, blue = (np.float32(value) for value in lay.TORSOS[player])
    distance_Thw = np.square(stage_CThw[0] - red)
    distance_Thw += np.square(stage_CThw[1] - green)
    distance_Thw += np.square(stage_CThw[2] - blue)
    weight_Thw = np.clip((COLOUR_FAR - np.sqrt(distance_Thw)) / (COLOUR_FAR - COLOUR_NEAR), 0.0, 1.0)
    # Pixel centres: a torso over columns x-4..x+3 has its centre at x.
    x_w = np.arange(lay.WIDTH, dtype=np.float32) + 0.5
    height_h = lay.FLOOR_ROW - np.arange(lay.HUD_ROWS, lay.HEIGHT, dtype=np.float32) - 0.5
    near_Tw = np.ones((len(weight_Thw), lay.WIDTH), np.float32)
    near_Th = np.ones((len(weight_Thw), len(height_h)), np.float32)
    for _ in range(2):
        column_Tw = np.einsum("thw,th->tw", weight_Thw, near_Th) * near_Tw
        row_Th = np.einsum("thw,tw->th", weight_Thw, near_Tw) * near_Th
        mass_T = column_Tw.sum(axis=1)
        safe_T = np.maximum(mass_T, 1e-6)
        x_T = (column_Tw @ x_w) / safe_T
        height_T = (row_Th @ height_h) / safe_T
        deviation_T = np.sqrt((column_Tw * (x_w - x_T[:, None]) ** 2).sum(axis=1) / safe_T)
        near_Tw = (np.abs(x_w - x_T[:, None]) <= BODY_WINDOW).astype(np.float32)
        near_Th = (np.abs(height_h - height_T[:, None]) <= BODY_WINDOW).astype(np.float32)
    return x_T, height_T, deviation_T, mass_T


def read_video(frames_ThwC: NDArray[np.uint8]) -> Reading:
    """Read every frame of a video.

    Args:
        frames_ThwC: uint8 RGB [T, 64, 96, 3].

    Raises:
        InputError: other size or type.
    """
    _check(frames_ThwC)
    bars = [read_bar(frames_ThwC, bar, lay.HP_FULL) for bar in lay.HP_BARS]
    bars += [read_bar(frames_ThwC, bar, lay.METER_FULL) for bar in lay.METER_BARS]
    lengths, residuals = (np.stack(part, axis=1) for part in zip(*bars, strict=True))
    stage_CThw = np.moveaxis(frames_ThwC[:, lay.HUD_ROWS :], -1, 0).astype(np.float32, order="C")
    bodies = [read_body(stage_CThw, player) for player in (0, 1)]
    x_TP, height_TP, spread_TP, mass_TP = (np.stack(part, axis=1) for part in zip(*bodies, strict=True))
    found_TP = mass_TP >= MIN_TORSO_PIXELS
    upright_TP = np.select([height_TP < CROUCH_BELOW, height_TP < STAND_BELOW], [CROUCH, STAND], AIR)
    return Reading(
        hp_TP=lengths[:, :2],
        meter_TP=lengths[:, 2:],
        x_TP=np.where(found_TP, x_TP, np.nan).astype(np.float32),
        height_TP=np.where(found_TP, height_TP, np.nan).astype(np.float32),
        stance_TP=np.where(spread_TP > LYING_SPREAD, DOWN, upright_TP).astype(np.int64),
        hud_ok_T=np.asarray((residuals <= MAX_BAR_RESIDUAL).all(axis=1)),
        bodies_ok_T=np.asarray((found_TP & (spread_TP <= SMEARED_SPREAD)).all(axis=1)),
    )


def read_timer(frame_hwC: NDArray[np.uint8]) -> int:
    """The clock in seconds: the digits whose ink differs least."""
    luma_hw = frame_hwC.astype(np.float32) @ LUMA
    back, ink = _luma_of(lay.HUD_BACK), _luma_of(lay.TIMER_INK)
    value = 0
    for left in lay.TIMER_LEFT:
        box = luma_hw[lay.TIMER_TOP : lay.TIMER_TOP + lay.DIGIT_ROWS, left : left + lay.DIGIT_COLUMNS]
        shown = np.clip((box - back) / (ink - back), 0.0, 1.0)
        errors = [float(np.abs(shown - lay.digit_ink(digit)).sum()) for digit in range(10)]
        value = 10 * value + int(np.argmin(errors))
    return value


def read_first_state(frame_hwC: NDArray[np.uint8]) -> FirstState:
    """What a first frame shows, exactly.

    Args:
        frame_hwC: uint8 RGB [64, 96, 3].

    Raises:
        InputError: the picture is no first frame of arena.
    """
    _check(frame_hwC[None])
    seen = read_video(frame_hwC[None])
    if not bool(seen.readable[0]):
        raise InputError("the first frame cannot be read as arena", "give a picture of arena's own renderer")
    stances = seen.stance_TP[0].tolist()
    if not set(stances) <= {STAND, CROUCH}:
        raise InputError("arena clips start with both fighters standing or crouching on the ground")
    x = [min(X_MAX, max(X_MIN, 2 * round(float(value) / 2))) for value in seen.x_TP[0]]
    if abs(x[0] - x[1]) < MIN_GAP:
        raise InputError(f"the fighters stand {abs(x[0] - x[1])} pixels apart, less than {MIN_GAP}")
    hp = [max(lay.HP_PER_PIXEL, lay.HP_PER_PIXEL * round(float(value))) for value in seen.hp_TP[0]]
    meter = [lay.METER_PER_PIXEL * round(float(value)) for value in seen.meter_TP[0]]
    return FirstState(
        (x[0], x[1]),
        (stances[0] == CROUCH, stances[1] == CROUCH),
        (hp[0], hp[1]),
        (meter[0], meter[1]),
        read_timer(frame_hwC),
    )


def true_reading(truth: Trajectory) -> Reading:
    """What a perfect reader sees in the engine's own rendering of a trajectory."""
    stance_TP = truth.column("stance").astype(np.int64)
    centres = np.array([(bottom + top) / 2 for _, bottom, top in lay.TORSO_BOXES], np.float32)
    every_T = np.ones(len(truth.timer_T), np.bool_)
    return Reading(
        hp_TP=(truth.hp / lay.HP_PER_PIXEL).astype(np.float32),
        meter_TP=(truth.meter / lay.METER_PER_PIXEL).astype(np.float32),
        x_TP=truth.column("x").astype(np.float32),
        height_TP=(centres[stance_TP] + truth.column("y")).astype(np.float32),
        stance_TP=stance_TP,
        hud_ok_T=every_T,
        bodies_ok_T=every_T,
    )
