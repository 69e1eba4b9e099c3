"""Strategies that damage bytes, and the one rule that every reader of foreign bytes keeps.

The rule: a value, or an error of ours that says what is wrong. Never another exception.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from stateplay_rl.errors import SprlError

EXAMPLES = int(os.environ.get("SPRL_FUZZ_EXAMPLES", "40"))
"""Inputs a reader gets in one run of the tests; a long run sets more."""

fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="SPRL_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def damaged(sound: bytes) -> st.SearchStrategy[bytes]:
    """Cut off, bytes changed, a piece doubled, removed or replaced, or something else altogether."""
    place = st.integers(0, max(len(sound) - 1, 0))
    return st.one_of(
        place.map(lambda at: sound[:at]),
        st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=8).map(partial(_edited, sound)),
        st.tuples(place, place).map(lambda two: sound[: max(two)] + sound[min(two) :]),
        st.tuples(place, place).map(lambda two: sound[: min(two)] + sound[max(two) :]),
        st.tuples(place, st.binary(max_size=64)).map(lambda p: sound[: p[0]] + p[1] + sound[p[0] + len(p[1]) :]),
        st.binary(max_size=200),
    )


def _edited(sound: bytes, edits: list[tuple[int, int]]) -> bytes:
    data = bytearray(sound)
    for at, value in edits:
        data[at] = value
    return bytes(data)


ODD_VALUES: list[Any] = [
    None, True, False, -1, 0, 2**63, 10**400, -0.0, 1e308, float("inf"), float("nan"), "", "x", "\x00", "..", "/etc",
    "\ud800", "é" * 300, [], {}, [[]], {"": None}, [None] * 3,
]  # fmt: skip

json_values = st.recursive(
    st.sampled_from(ODD_VALUES) | st.integers() | st.text(max_size=20) | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def altered(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with one to three of its parts replaced, removed or added at any depth."""
    for _ in range(draw(st.integers(1, 3))):
        value = _alter(draw, value)
    return value


def _alter(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        key = draw(st.sampled_from(sorted(value)))
        rest = {name: item for name, item in value.items() if name != key}
        kind = draw(st.integers(0, 3))
        if kind == 0:
            return rest
        if kind == 1:
            return {**value, draw(st.text(max_size=8)): draw(json_values)}
        return {**rest, key: _alter(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], _alter(draw, value[at]), *value[at + 1 :]]
    return draw(json_values)


def deep(opening: str, closing: str = "", depth: int = 100_000) -> bytes:
    """Brackets in brackets: too deep for any recursive reader."""
    return (opening * depth + closing * depth).encode()


def reads_or_says_why(reader: Callable[[], object]) -> object:
    """Run a reader; anything but a result or an error of ours is the reader's fault.

    Raises:
        Exception: what a user would get as a traceback.
    """
    try:
        return reader()
    except SprlError as error:
        if not error.what.strip():
            raise AssertionError("an error without a text") from error
        return None
