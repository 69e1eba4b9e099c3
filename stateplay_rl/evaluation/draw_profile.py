"""Draw a HUD profile over a frame, with what the reader makes of it: to make a profile, and to look at readings.

    python -m stateplay_rl.evaluation.draw_profile FRAME [--profile sf3] [--out overlay.png] [--scale 3]

Boxes: what is read. Lines: the frame's light (white) and dark (grey) rows, and its ends. Over the boxes: solid part
(bright), draining part (red), and the numbers. Several frames make a column. Exit codes are those of `sprl`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from stateplay_rl.errors import EXIT_OK, InputError, SprlError
from stateplay_rl.evaluation.hud import ElementReading, HudReading, ProfileReader
from stateplay_rl.evaluation.placement import Placement, nominal_placements
from stateplay_rl.evaluation.profile import BarProfile, Box, HudProfile, load_profile
from stateplay_rl.stores.pictures import read_picture

_READ, _DRAIN, _UNREAD = (0, 255, 255), (255, 0, 160), (255, 140, 0)
_LIGHT, _DARK = (255, 255, 255), (150, 150, 150)
_MARGIN = 4
_TEXT_ROWS = 14


def draw_profile(frame_hwC: NDArray[np.uint8], profile: HudProfile, scale: int = 3) -> Image.Image:
    """A frame, enlarged, with the profile and its reading drawn over it.

    Where no HUD is found, the profile is drawn where the picture's size says that it should be.

    Args:
        frame_hwC: uint8 RGB.
        profile: the game's HUD.
        scale: enlargement.

    Raises:
        InputError: not a colour picture.
        ValueError: a scale below 1.
    """
    if scale < 1:
        raise ValueError(f"scale {scale} must be at least 1")
    reading = ProfileReader(profile).read(frame_hwC)
    height, width = frame_hwC.shape[:2]
    place = reading.place or nominal_placements(height, width, profile)[0]
    picture = Image.fromarray(frame_hwC).resize((width * scale, height * scale), Image.Resampling.NEAREST)
    canvas = Image.new("RGB", (picture.width, picture.height + _TEXT_ROWS * (len(reading.elements) + 1)))
    canvas.paste(picture)
    pen = ImageDraw.Draw(canvas)
    for name, bar in profile.bars.items():
        _draw_bar(pen, place, scale, bar, reading.elements[name])
    if profile.timer is not None:
        for left, top in profile.timer.cells:
            box = Box(left=left, top=top, width=profile.timer.width, height=profile.timer.height)
            _outline(pen, place, scale, box, _colour(reading.elements["timer"]))
    for row, line in enumerate(describe(reading)):
        pen.text((_MARGIN, picture.height + row * _TEXT_ROWS), line, fill=(255, 255, 255))
    return canvas


def describe(reading: HudReading) -> list[str]:
    """A reading in words, a line an element."""
    lines = ["HUD found" if reading.place is not None else "no HUD found: drawn where it should be"]
    for name, seen in reading.elements.items():
        if seen.low is None or seen.high is None:
            lines.append(f"{name}: unreadable, {seen.reason}")
        else:
            span = f"{seen.low:g}" if seen.high == seen.low else f"{seen.low:g} to {seen.high:g} (drains)"
            lines.append(f"{name}: {span}   confidence {seen.confidence:.2f}")
    return lines


def _colour(seen: ElementReading) -> tuple[int, int, int]:
    return _READ if seen.readable else _UNREAD


def _corner(place: Placement, scale: int, x: float, y: float) -> tuple[float, float]:
    """Canvas position of the upper left corner of a native pixel."""
    column, row = place.columns(np.array([x - 0.5]))[0], place.rows(np.array([y - 0.5]))[0]
    return (float(column) + 0.5) * scale, (float(row) + 0.5) * scale


def _outline(pen: ImageDraw.ImageDraw, place: Placement, scale: int, box: Box, colour: tuple[int, int, int]) -> None:
    pen.rectangle(
        [_corner(place, scale, box.left, box.top), _corner(place, scale, box.right, box.bottom)], outline=colour
    )


def _draw_bar(pen: ImageDraw.ImageDraw, place: Placement, scale: int, bar: BarProfile, seen: ElementReading) -> None:
    for line in bar.frame.rows:
        ends = [_corner(place, scale, x, line.at + 0.5) for x in (bar.frame.first_column, bar.frame.last_column + 1)]
        pen.line(ends, fill=_LIGHT if line.shade == "light" else _DARK)
    for light, dark in bar.frame.ends:
        for x, colour in ((light, _LIGHT), (dark, _DARK)):
            ends = [_corner(place, scale, x + 0.5, y) for y in (bar.box.top - 2, bar.box.bottom + 2)]
            pen.line(ends, fill=colour)
    _outline(pen, place, scale, bar.box, _colour(seen))
    if seen.low is None or seen.high is None:
        return
    per_point = bar.box.width / bar.points
    middle = bar.box.top + bar.box.height / 2
    for start, end, colour in ((0.0, seen.low, _READ), (seen.low, seen.high, _DRAIN)):
        if end > start:
            marks = [_along(bar, points * per_point) for points in (start, end)]
            pen.line([_corner(place, scale, x, middle) for x in marks], fill=colour, width=max(1, scale // 2))
    mark = _along(bar, seen.low * per_point)
    ends = [_corner(place, scale, mark, y) for y in (bar.box.top - 3, bar.box.bottom + 3)]
    pen.line(ends, fill=_READ, width=max(1, scale // 2))


def _along(bar: BarProfile, columns: float) -> float:
    """Native x of a point `columns` from the anchored side."""
    return bar.box.right - columns if bar.fills_from == "right" else bar.box.left + columns


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m stateplay_rl.evaluation.draw_profile", description=__doc__)
    parser.add_argument("frames", nargs="+", type=Path, help="pictures of the game, any size")
    parser.add_argument("--profile", default="sf3", help="packaged game, or a profile file")
    parser.add_argument("--out", type=Path, default=Path("overlay.png"), help="picture to write")
    parser.add_argument("--scale", type=int, default=3, choices=range(1, 9), help="enlargement")
    options = parser.parse_args(arguments)
    try:
        profile = load_profile(options.profile)
        drawn = []
        for path in options.frames:
            frame = read_picture(path)
            drawn.append(draw_profile(frame, profile, options.scale))
            print(path)
            print("\n".join(f"  {line}" for line in describe(ProfileReader(profile).read(frame))))
        column = Image.new("RGB", (max(d.width for d in drawn), sum(d.height for d in drawn)))
        top = 0
        for picture in drawn:
            column.paste(picture, (0, top))
            top += picture.height
        column.save(options.out)
    except SprlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {options.out} cannot be written: {error.strerror}", file=sys.stderr)
        return InputError.exit_code
    print(f"overlay: {options.out}")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
