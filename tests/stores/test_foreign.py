"""Foreign JSON: every fault is a ValueError, and no number comes in that `int` or `float` stumbles over."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.errors import CorruptionError
from stateplay_rl.stores.foreign import parse_json, parse_object, read_object


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, '[{"a": 1e400}]'])
def test_numbers_that_no_float_holds(text: str) -> None:
    """Found by fuzzing: a seed of `Infinity` ended in an OverflowError of `int`."""
    with pytest.raises(ValueError, match="no number of JSON"):
        parse_json(text)
    parse_json(text, finite=False)


def test_numbers_are_unchanged() -> None:
    assert parse_json(b'[1, -0.5, 1e-400, 1e308, 18446744073709551615, "NaN"]') == [
        1,
        -0.5,
        0.0,
        1e308,
        2**64 - 1,
        "NaN",
    ]


@pytest.mark.parametrize("data", [b"", b"{", b"\xff{}", b"[" * 100_000, b"\xef\xbb\xbf{}"[:2]])
@pytest.mark.parametrize("finite", [True, False])
def test_any_other_fault_is_a_value_error(data: bytes, finite: bool) -> None:
    with pytest.raises(ValueError):
        parse_json(data, finite=finite)


def test_objects_of_files(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with pytest.raises(CorruptionError, match=r"a\.json cannot be read"):
        read_object(file, "do this")
    for text in ("[]", "3", "null", "{"):
        file.write_text(text)
        with pytest.raises(CorruptionError, match=r"a\.json") as caught:
            read_object(file, "do this")
        assert caught.value.hint == "do this"
    assert parse_object(b'{"a": 1}', file, "") == {"a": 1}
