"""The HUD of one game, as data: where bars and clock lie, what colours they have, what the rules allow.

One YAML file a game (`profiles/<game>.yaml`); `docs/hud-profiles.md` shows how to make one. All coordinates
are whole pixels of the game's native picture: `left` and `top` are the first pixel that belongs to a box.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from stateplay_rl.config.base import FrozenConfig, load_config
from stateplay_rl.errors import UsageError

FOLDER = Path(__file__).parent / "profiles"

Colour = Annotated[tuple[int, int, int], Field(description="RGB, 0..255")]
Shade = Literal["light", "dark"]
Channel = Literal["min", "max", "red", "green", "blue"]
Role = Literal["p1_hp", "p2_hp", "p1_meter", "p2_meter"]
ROLES: tuple[Role, ...] = ("p1_hp", "p2_hp", "p1_meter", "p2_meter")
TIMER = "timer"
ELEMENTS: tuple[str, ...] = (*ROLES, TIMER)
"""Every number that a HUD shows, by the name of its state column."""


class Box(FrozenConfig):
    """A rectangle of native pixels."""

    left: int = Field(ge=0)
    top: int = Field(ge=0)
    width: int = Field(ge=1)
    height: int = Field(ge=1)

    @property
    def right(self) -> int:
        """First column past the box."""
        return self.left + self.width

    @property
    def bottom(self) -> int:
        """First row past the box."""
        return self.top + self.height


class Line(FrozenConfig):
    """A row of a frame, its colour, and whether it is light or dark in the frame's channel."""

    at: int = Field(ge=0, description="row of native pixels")
    shade: Shade
    colour: Colour


class FrameLines(FrozenConfig):
    """The opaque lines around a bar: what the reader aligns by, and what a covered bar lacks.

    `channel` says where they stand out: `min` of the three colours (white lines beside coloured fills), `max`
    (black lines beside bright ones), or one colour (blue lines beside a yellow fill).
    """

    channel: Channel
    rows: tuple[Line, ...] = Field(min_length=2)
    first_column: int = Field(ge=0, description="columns over which the rows are opaque: first one")
    last_column: int = Field(ge=0, description="and last one")
    ends: tuple[tuple[int, int], ...] = Field((), description="(light column, dark column inside it) at the ends")

    @model_validator(mode="after")
    def _has_both_shades(self) -> FrameLines:
        if {line.shade for line in self.rows} != {"light", "dark"}:
            raise ValueError("rows need at least one light and one dark line: only their contrast is looked at")
        if self.last_column <= self.first_column:
            raise ValueError("last_column must be past first_column")
        return self


class BarProfile(FrozenConfig):
    """One bar. Its fill grows from `fills_from`; `points` is the value of a full box."""

    box: Box
    fills_from: Literal["left", "right"]
    points: float = Field(gt=0)
    solid: tuple[Colour, ...] = Field(min_length=1, description="colours of the solid part")
    drain: Colour | None = Field(None, description="colour of the part that was just lost and still drains")
    empty: Colour | None = Field(None, description="colour of the empty part; none: the scene shows through")
    rim_rows: tuple[int, ...] = Field((), description="rows beside the box that are as bright as the fill, paler")
    scene_rows: tuple[int, int] | None = Field(
        None, description="rows [first, past) just outside the bar where the scene shows, for the see-through test"
    )
    scene_free: tuple[tuple[int, int], ...] = Field((), description="columns [first, past) free of text there")
    scene_test: Literal["match", "lively"] = Field(
        "match", description="`match`: the empty part must look like the scene beside; `lively`: only as uneven as it"
    )
    frame: FrameLines
    tolerance: float = Field(2.0, ge=0, description="points by which a right reading may miss the truth")


class TimerProfile(FrozenConfig):
    """The clock's digits: `cells` from left to right, each `width` x `height`."""

    cells: tuple[tuple[int, int], ...] = Field(min_length=1, description="(left, top) of each digit")
    width: int = Field(ge=2)
    height: int = Field(ge=2)
    ink: tuple[Colour, Colour] = Field(description="digit's colour at its top and at its bottom")
    back: Colour = Field((0, 0, 0), description="colour of the outline around the digits")
    glyphs: Mapping[str, tuple[str, ...]] = Field(description="digit -> rows of `#` (ink) and `.`")
    drawn: tuple[str, ...] = Field((), description="digits drawn from memory, never seen in a frame")

    @model_validator(mode="after")
    def _all_digits(self) -> TimerProfile:
        if set(self.glyphs) != set("0123456789"):
            raise ValueError(f"glyphs must be given for 0-9, not {sorted(self.glyphs)}")
        for digit, rows in self.glyphs.items():
            if len(rows) != self.height or any(len(row) != self.width for row in rows):
                raise ValueError(f"glyph {digit!r} must have {self.height} rows of {self.width}")
            if not any("#" in row for row in rows) or set("".join(rows)) - set("#."):
                raise ValueError(f"glyph {digit!r} must be of '#' and '.' and have ink")
        return self


class GameRules(FrozenConfig):
    """What cannot happen in this game; points, seconds and frames at 20 fps."""

    max_hp_fall: float = Field(gt=0, description="most HP that one frame's change may cost")
    max_meter_gain: float = Field(gt=0, description="most meter that one frame's change may bring")
    special_fall: float = Field(gt=0, description="a meter fall of at least this is a special")
    hit_fall: float = Field(gt=0, description="an HP fall of at least this is a hit")
    timer_max: int = Field(ge=1)
    timer_tick_frames: int = Field(ge=1, description="fewest frames between two ticks of the clock")
    display_delay_frames: int = Field(ge=0, description="how far the display may lag behind the true state")


@dataclass(frozen=True)
class HudFacts:
    """What must be known of a game to follow its HUD, whoever reads it.

    Args:
        game: name.
        tolerances: by element, points by which a right reading may miss the truth; its keys are the elements.
        rules: what cannot happen.
    """

    game: str
    tolerances: Mapping[str, float]
    rules: GameRules

    @property
    def elements(self) -> tuple[str, ...]:
        return tuple(self.tolerances)


class HudProfile(FrozenConfig):
    """The HUD of one game."""

    game: str = Field(pattern=r"^[a-z0-9_-]+$")
    width: int = Field(ge=16, description="native picture width")
    height: int = Field(ge=16, description="native picture height")
    bars: dict[Role, BarProfile]
    timer: TimerProfile | None = None
    rules: GameRules

    @model_validator(mode="after")
    def _inside_the_picture(self) -> HudProfile:
        if not self.bars:
            raise ValueError("at least one bar is needed")
        for name, bar in self.bars.items():
            lines = [line.at for line in bar.frame.rows]
            for side in (
                {line.shade for line in bar.frame.rows if line.at < bar.box.top},
                {line.shade for line in bar.frame.rows if line.at >= bar.box.bottom},
            ):
                if side != {"light", "dark"}:
                    raise ValueError(f"bars.{name} needs a light and a dark frame row both above and below its box")
            if bar.frame.first_column < bar.box.left or bar.frame.last_column >= bar.box.right:
                raise ValueError(f"bars.{name}: the frame's columns must lie within the box's")
            if bar.box.right > self.width or max(bar.box.bottom - 1, *lines) >= self.height:
                raise ValueError(f"bars.{name} reaches outside the {self.width}x{self.height} picture")
        for left, top in () if self.timer is None else self.timer.cells:
            if left + self.timer.width > self.width or top + self.timer.height > self.height:  # type: ignore[union-attr]
                raise ValueError("a timer cell reaches outside the picture")
        if sum(len(bar.frame.ends) for bar in self.bars.values()) < 2:
            raise ValueError("at least two frame ends are needed: the picture is aligned by them")
        return self

    @property
    def elements(self) -> tuple[str, ...]:
        """Names of what this HUD shows, in the order of `ELEMENTS`."""
        return tuple(name for name in ELEMENTS if name in self.bars or (name == TIMER and self.timer is not None))

    @property
    def facts(self) -> HudFacts:
        """Elements with tolerances, and rules; the clock must be exact."""
        tolerances = {name: 0.0 if name == TIMER else self.bars[name].tolerance for name in self.elements}  # type: ignore[index]
        return HudFacts(self.game, tolerances, self.rules)


def packaged_profiles() -> tuple[str, ...]:
    """Names of the games whose profile comes with the package."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@lru_cache(maxsize=16)
def load_profile(name: str) -> HudProfile:
    """A packaged profile by the game's name, or a profile file by its path.

    Raises:
        UsageError: no such game and no such file, or a key or value that does not fit.
        InputError: the file cannot be read.
    """
    packaged = FOLDER / f"{name}.yaml"
    if name in packaged_profiles():
        return load_config(HudProfile, packaged)
    if not Path(name).is_file():
        known = ", ".join(packaged_profiles())
        raise UsageError(f"no HUD profile {name!r}", f"give one of {known}, or a file (docs/hud-profiles.md)")
    return load_config(HudProfile, Path(name))
