"""Run-length text of held buttons."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stateplay_rl.reporting.actions import decode_actions, encode_actions

ROW = st.lists(st.integers(0, 1), min_size=11, max_size=11)


def test_masks_count_from_up() -> None:
    up, right_and_d = [1] + [0] * 10, [0, 0, 0, 1] + [0] * 6 + [1]
    assert encode_actions([up, up, right_and_d]) == "1x2 408x1"
    assert encode_actions([]) == ""


@given(st.lists(ROW, max_size=30))
def test_round_trip(rows: list[list[int]]) -> None:
    masks = tuple(sum(bit << index for index, bit in enumerate(row)) for row in rows)
    assert decode_actions(encode_actions(rows)) == masks
