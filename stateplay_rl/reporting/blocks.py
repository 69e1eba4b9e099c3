"""What a report page is made of: frozen descriptions that the renderers turn into SVG, PNG, CSV and HTML.

Every block names its `source`: the file and field that its numbers were read from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Tone = Literal["good", "caution", "bad", "neutral"]
Role = Literal["reference", "before", "after", "candidate"]
Number = float | int | None


@dataclass(frozen=True)
class Series:
    """One line of a chart. `None` in `y` is a missing value: the line has a gap there.

    Args:
        colour: index into the palette, so that one meaning keeps one colour over all charts.
        low, high: lower and upper ends of a 95 % band, of the length of `y`.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    colour: int
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    dashed: bool = False


@dataclass(frozen=True)
class Threshold:
    """A horizontal line that a reader should compare with."""

    value: float
    label: str


@dataclass(frozen=True)
class LineChart:
    """Lines over a common x axis. `y_range` widens the axis, it never cuts data off."""

    key: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    source: str
    caption: str = ""
    thresholds: tuple[Threshold, ...] = ()
    y_range: tuple[float, float] | None = None
    kind: Literal["line"] = "line"


@dataclass(frozen=True)
class BarSeries:
    """One colour of a bar chart: a value per category."""

    label: str
    values: tuple[float | None, ...]
    colour: int


@dataclass(frozen=True)
class BarChart:
    """Bars per category, side by side or stacked."""

    key: str
    title: str
    x_label: str
    y_label: str
    categories: tuple[str, ...]
    series: tuple[BarSeries, ...]
    source: str
    caption: str = ""
    stacked: bool = False
    kind: Literal["bar"] = "bar"


@dataclass(frozen=True)
class HeatChart:
    """Shares per cell: `values[column][row]`, rows drawn from the bottom up."""

    key: str
    title: str
    x_label: str
    y_label: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    source: str
    caption: str = ""
    kind: Literal["heat"] = "heat"


Chart = LineChart | BarChart | HeatChart


@dataclass(frozen=True)
class ChartGrid:
    """Charts set in two or three columns, one column on a phone."""

    charts: tuple[Chart, ...]
    columns: Literal[2, 3] = 2
    kind: Literal["charts"] = "charts"


@dataclass(frozen=True)
class Stat:
    """One large figure. `source` becomes its hover text."""

    label: str
    value: str
    source: str
    detail: str = ""
    tone: Tone = "neutral"


@dataclass(frozen=True)
class StatRow:
    """A row of large figures."""

    stats: tuple[Stat, ...]
    kind: Literal["stats"] = "stats"


@dataclass(frozen=True)
class Column:
    """A table column; numeric ones are aligned right and shown with `digits` decimals."""

    label: str
    numeric: bool = False
    digits: int | None = None
    signed: bool = False
    mono: bool = False


@dataclass(frozen=True)
class Table:
    """A table. The page shows `shown` rows, the CSV file all of them."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str | Number, ...], ...]
    source: str
    note: str = ""
    shown: int = 40
    kind: Literal["table"] = "table"


@dataclass(frozen=True)
class Prose:
    """One paragraph, optionally coloured by its meaning."""

    text: str
    tone: Tone = "neutral"
    kind: Literal["prose"] = "prose"


@dataclass(frozen=True)
class Frame:
    """One still picture of a grid; `image` is a data URI."""

    image: str
    title: str
    detail: str
    pixelated: bool


@dataclass(frozen=True)
class FrameGrid:
    """Still pictures, captioned."""

    title: str
    frames: tuple[Frame, ...]
    source: str
    kind: Literal["frames"] = "frames"


@dataclass(frozen=True)
class Video:
    """One video of a card: embedded (`media` is a key of the page's media table) or linked (`href`)."""

    label: str
    role: Role
    score: float | None
    reason: str | None = None
    media: str | None = None
    href: str | None = None
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Card:
    """Videos of one group or of one held-out condition, played together.

    Args:
        actions: run-length text of the held buttons, ``"<hex mask>x<rows> ..."``, bit 0 = UP.
        first_frame: data URI, or None when it was not read.
        pixelated: small pictures are enlarged without smoothing.
        alarms: names of the alarms and warnings of the card's batch.
        files: name and hash of the files that the card was made of.
    """

    title: str
    mechanics_class: str
    batch: int | None
    videos: tuple[Video, ...]
    prompt: str
    actions: str
    fps: float
    frames: int
    pixelated: bool
    source: str
    first_frame: str | None = None
    note: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    alarms: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Gallery:
    """Cards with their filters; drawn by the page's script a few at a time."""

    key: str
    title: str
    cards: tuple[Card, ...]
    source: str
    filters: bool
    page_size: int = 4
    note: str = ""
    kind: Literal["gallery"] = "gallery"


Block = ChartGrid | StatRow | Table | Prose | FrameGrid | Gallery


@dataclass(frozen=True)
class Section:
    """A titled part of a page."""

    key: str
    title: str
    blocks: tuple[Block, ...]
    lead: str = ""


@dataclass(frozen=True)
class Alarm:
    """One alarm or warning, as the run wrote it, gathered by name."""

    name: str
    severity: Literal["warning", "alarm"]
    message: str
    detail: str


@dataclass(frozen=True)
class LineageStep:
    """One directory or file that a number goes back to; `sha256` is that of its manifest, or of the file."""

    what: str
    place: str
    sha256: str


@dataclass(frozen=True)
class Lineage:
    """Where the numbers of one directory come from.

    Attributes:
        steps: its inputs, theirs, and so on back to weight files.
        index: name and hash of the files that a number of its page may name.
    """

    facts: tuple[tuple[str, str], ...]
    inputs: tuple[tuple[str, str, str], ...]
    files: tuple[tuple[str, int, str], ...]
    files_left_out: int
    config_yaml: str
    steps: tuple[LineageStep, ...] = ()
    index: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Headline:
    """What a reader should take away, in words: a short verdict and full sentences."""

    verdict: str
    tone: Tone
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class SourcePage:
    """The report on one directory."""

    key: str
    kind_label: str
    name: str
    headline: Headline
    alarms: tuple[Alarm, ...]
    sections: tuple[Section, ...]
    lineage: Lineage


@dataclass(frozen=True)
class ReportPage:
    """The whole page. `media` maps a key to base64 text of an MP4 file."""

    title: str
    pages: tuple[SourcePage, ...]
    comparison: Section | None = None
    comparison_headline: Headline | None = None
    comparison_alarms: tuple[Alarm, ...] = ()
    media: Mapping[str, str] = field(default_factory=dict)
