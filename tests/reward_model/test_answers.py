"""The answer's form: integers half to even, tokens digit by digit."""

from __future__ import annotations

import json

import pytest

from stateplay_rl.errors import UsageError
from stateplay_rl.reward_model.answers import AnswerForm, answer_text, target_scores
from stateplay_rl.reward_model.base_model import BaseModel
from stateplay_rl.reward_model.chat import ChatFormat

LABELS = ("A", "B", "C", "D")


def test_targets_are_rounded_half_to_even() -> None:
    assert target_scores((0.5, 1.5, 2.5, 99.5, 71.49, 100.0)) == (0, 2, 2, 100, 71, 100)


def test_the_text_is_what_the_parser_takes() -> None:
    assert answer_text(LABELS, (71, 3, 88, 100)) == '{"scores": {"A": 71, "B": 3, "C": 88, "D": 100}}'
    assert json.loads(answer_text(LABELS[:2], (0, 1))) == {"scores": {"A": 0, "B": 1}}


def test_tokens_are_those_of_the_text(base: BaseModel) -> None:
    form = AnswerForm.of(base.chat, LABELS)
    for scores in ((0, 0, 0, 0), (100, 10, 1, 99), (7, 42, 100, 60)):
        assert list(form.tokens(scores)) == [*base.chat.text(answer_text(LABELS, scores)), base.chat.end_id]
    assert len(set(form.digits)) == 10
    assert form.after(0) == form.before[1][0]
    assert form.after(3) == form.end[0]


def test_a_tokenizer_that_joins_digits_is_refused(base: BaseModel) -> None:
    from tokenizers import AddedToken
    from transformers import AutoTokenizer

    joining = AutoTokenizer.from_pretrained(str(base.folder))
    joining.add_tokens([AddedToken("42", normalized=False, special=False)])
    with pytest.raises(UsageError, match="digit by digit"):
        AnswerForm.of(ChatFormat(joining, base.chat.image_id), LABELS)
