"""Lengths are counted before anything is computed, and nothing is ever cut."""

from __future__ import annotations

import pytest

from stateplay_rl.errors import InputError
from stateplay_rl.reward_model.base_model import BaseModel
from stateplay_rl.reward_model.inputs import GroupReader, Length, refuse_too_long
from tests.reward_model.small_groups import payload_of


def test_the_counted_length_is_that_of_the_tokens_with_the_longest_answer(base: BaseModel) -> None:
    reader = GroupReader(base)
    length = reader.length(payload_of(1))
    assert len(reader.training_input(payload_of(1), (100, 100, 100, 100)).ids) == length.total
    assert len(reader.training_input(payload_of(1), (0, 7, 42, 100)).ids) < length.total
    assert len(reader.prompt(payload_of(1)).ids) == length.prompt


def test_a_group_one_token_too_long_is_refused(base: BaseModel) -> None:
    length = GroupReader(base).length(payload_of(1))
    shorter = Length(length.prompt - 1, length.answer)
    refuse_too_long({"g0": shorter, "g1": length}, length.total)
    with pytest.raises(InputError, match=f"1 of 2 groups .* g1 has {length.total} tokens"):
        refuse_too_long({"g0": shorter, "g1": length}, length.total - 1)


def test_another_order_moves_pictures_and_targets_together(base: BaseModel) -> None:
    reader = GroupReader(base)
    target = (1, 20, 30, 100)
    plain, turned = (reader.training_input(payload_of(1, order), target) for order in ((0, 1, 2, 3), (2, 3, 1, 0)))
    form = reader.form(payload_of(1).labels)
    assert plain.ids[-plain.answer_tokens :] == form.tokens((1, 20, 30, 100))
    assert turned.ids[-turned.answer_tokens :] == form.tokens((30, 100, 20, 1))
    assert all((turned.features[i] == plain.features[k]).all() for i, k in enumerate((2, 3, 1, 0)))
