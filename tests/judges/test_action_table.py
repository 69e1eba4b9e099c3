"""The action table covers every row, splits where buttons change, and can be read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.errors import InputError
from stateplay_rl.judges.action_table import Window, read_table, table_text, windows_of

NONE = (0,) * 11


def row(*names: str) -> tuple[int, ...]:
    return tuple(int(name in names) for name in BUTTONS)


def test_windows_are_the_bins() -> None:
    buttons = [row("RIGHT", "X")] * 4 + [NONE] * 4
    assert windows_of(buttons, [(0, 4), (4, 8)]) == (Window(0, 4, ("RIGHT", "X")), Window(4, 8, ()))


def test_a_press_inside_a_bin_is_not_lost() -> None:
    buttons = [NONE, row("A"), NONE, NONE]
    assert [w.held for w in windows_of(buttons, [(0, 4)])] == [(), ("A",), ()]


def test_rows_outside_all_bins_are_shown() -> None:
    """The real model's bins start with a first one of a single row, and may end before the rows do."""
    buttons = [row("UP")] * 10
    windows = windows_of(buttons, [(0, 1), (1, 5), (5, 9)])
    assert [(w.first, w.last) for w in windows] == [(0, 1), (1, 5), (5, 9), (9, 10)]


def test_the_text_has_seconds_and_names() -> None:
    text = table_text([Window(0, 10, ("DOWN", "RIGHT")), Window(10, 20, ())], 20.0)
    assert text.splitlines() == ["0.000 s to 0.500 s: DOWN + RIGHT", "0.500 s to 1.000 s: none"]


@given(
    rows=st.lists(st.tuples(*[st.integers(0, 1)] * 11), min_size=1, max_size=120),
    fps=st.sampled_from([12.5, 20.0, 24.0, 29.97, 60.0]),
)
def test_the_table_tells_all_rows(rows: list[tuple[int, ...]], fps: float) -> None:
    edges = [(start, start + 4) for start in range(0, len(rows), 4)]
    read = read_table("Buttons:\n" + table_text(windows_of(rows, edges), fps), fps)
    told = [window.held for window in read for _ in range(window.first, window.last)]
    assert told == [tuple(name for name, on in zip(BUTTONS, held, strict=True) if on) for held in rows]


@pytest.mark.parametrize("text", ["", "no table", "0.000 s to 0.100 s: JUMP"])
def test_no_table(text: str) -> None:
    with pytest.raises(InputError):
        read_table(text, 20.0)
