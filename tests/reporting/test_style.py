"""Colours that can be read: WCAG's contrast of text (4.5) and of lines and bars (3), light and dark."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

STYLE = (files("stateplay_rl.reporting") / "templates" / "style.css").read_text(encoding="utf-8")
PAIRS = {m[1]: (m[2], m[3]) for m in re.finditer(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", STYLE)}
TEXT = [
    *((name, ground) for name in ("ink", "soft", "good", "caution", "bad", "s0") for ground in ("paper", "card")),
    *((name, f"{tone}-bg") for tone in ("caution", "bad") for name in ("ink", "soft", tone)),
]


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` (WCAG 2.1)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_black_on_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXT)
def test_text_can_be_read(text: str, ground: str, theme: int) -> None:
    assert contrast(PAIRS[text][theme], PAIRS[ground][theme]) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("colour", [f"s{number}" for number in range(8)])
def test_lines_can_be_seen(colour: str, theme: int) -> None:
    assert contrast(PAIRS[colour][theme], PAIRS["card"][theme]) >= 3.0


def test_every_colour_that_is_used_is_defined() -> None:
    used = set(re.findall(r"var\(--([\w-]+)\)", STYLE))
    defined = set(re.findall(r"--([\w-]+):", STYLE))
    assert used <= defined
