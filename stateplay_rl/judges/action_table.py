"""The buttons of player 1 over time, as the judge reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.errors import InputError

NOTHING = "none"
_LINE = re.compile(r"(\d+\.\d{3}) s to (\d+\.\d{3}) s: (.+)")


@dataclass(frozen=True)
class Window:
    """A stretch of time with the same buttons held: rows `first` (included) to `last` (excluded)."""

    first: int
    last: int
    held: tuple[str, ...]


def windows_of(buttons: Sequence[Sequence[int]], edges: Sequence[tuple[int, int]]) -> tuple[Window, ...]:
    """Action windows of a clip: those of its action bins, split where buttons change inside one.

    Args:
        buttons: held rows [R][11] in {0, 1}.
        edges: first and past-the-last row of each bin; rows outside all bins get windows of their own.

    Returns:
        Windows in order, which together cover all R rows.
    """
    starts = {0, len(buttons)}
    for first, last in edges:
        starts |= {min(max(first, 0), len(buttons)), min(max(last, 0), len(buttons))}
    starts |= {row for row in range(1, len(buttons)) if tuple(buttons[row]) != tuple(buttons[row - 1])}
    ordered = sorted(starts)
    return tuple(Window(a, b, _held(buttons[a])) for a, b in pairwise(ordered))


def _held(row: Sequence[int]) -> tuple[str, ...]:
    return tuple(name for name, pressed in zip(BUTTONS, row, strict=True) if pressed)


def table_text(windows: Sequence[Window], fps: float) -> str:
    """One line a window: time in seconds and the buttons held."""
    return "\n".join(
        f"{window.first / fps:.3f} s to {window.last / fps:.3f} s: {' + '.join(window.held) or NOTHING}"
        for window in windows
    )


def read_table(text: str, fps: float) -> tuple[Window, ...]:
    """The windows of `table_text`.

    Raises:
        InputError: not such a table.
    """
    found = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        held = () if match.group(3) == NOTHING else tuple(match.group(3).split(" + "))
        if not set(held) <= set(BUTTONS):
            raise InputError(f"unknown buttons in the action table: {match.group(3)[:60]!r}")
        found.append(Window(round(float(match.group(1)) * fps), round(float(match.group(2)) * fps), held))
    if not found:
        raise InputError("no action table in the request")
    return tuple(found)
