"""Reading scores: proposals change no greedy answer, and expectations are those of the enumerated strings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stateplay_rl.reward_model import reading
from stateplay_rl.reward_model.base_model import BaseModel
from stateplay_rl.reward_model.inputs import GroupReader
from stateplay_rl.reward_model.language import Decoder, answer_logits, embed
from stateplay_rl.reward_model.reading import Prompt, parse_text, read_scores
from tests.reward_model.small_groups import LABELS, payload_of

SCORES = (71, 3, 100, 0)


class Scripted:
    """A decoder that always goes on with a given text; counts its passes."""

    def __init__(self, model: Any, script: tuple[int, ...], vocabulary: int, prompt: int) -> None:
        self.model, self.passes = model, 0
        self._script, self._vocabulary, self._prompt = script, vocabulary, prompt
        self._at = 0

    def _after(self, count: int, first: int) -> torch.Tensor:
        logits = torch.zeros(count, self._vocabulary)
        for i in range(count):
            logits[i, self._script[min(first + i, len(self._script) - 1)]] = 1.0
        return logits

    def prefill(self, inputs: Any, keep: int) -> torch.Tensor:
        self._at = inputs.embeddings.shape[1] - self._prompt
        return self._after(keep, self._at - keep + 1)

    def add(self, ids: Any) -> torch.Tensor:
        self.passes += 1
        found = self._after(len(ids), self._at + 1)
        self._at += len(ids)
        return found

    def state(self) -> int:
        return self._at

    def back_to(self, state: int) -> None:
        self._at = state

    def release(self) -> None:
        self._at = 0


@pytest.fixture
def prompt(base: BaseModel) -> Prompt:
    return GroupReader(base).prompt(payload_of(3))


def script(base: BaseModel, prompt: Prompt, text: str) -> Scripted:
    """A model that writes `text` and ends its turn."""
    return Scripted(base.model, (*base.chat.text(text), base.chat.end_id), 400, len(prompt.ids))


@pytest.mark.parametrize(
    ("text", "scores", "reason"),
    [
        ('{"scores": {"A": 71, "B": 3, "C": 100, "D": 0}}', (71.0, 3.0, 100.0, 0.0), None),
        ('{"scores": {"A": 7.5, "B": 3, "C": 100, "D": 0}}', (7.5, 3.0, 100.0, 0.0), None),
        ('Here: {"scores": {"A": 1, "B": 2, "C": 3, "D": 4}}', (1.0, 2.0, 3.0, 4.0), None),
        ('{"scores": {"A": 71, "B": 3, "D": 0}}', None, "labels"),
        ('{"scores": {"A": 171, "B": 3, "C": 100, "D": 0}}', None, "out_of_range"),
        ('{"scores": {"A": "71", "B": 3, "C": 100, "D": 0}}', None, "not_a_number"),
        ("", None, "empty"),
        ("no", None, "no_json"),
    ],
)
def test_proposals_never_change_what_the_model_writes(
    base: BaseModel,
    prompt: Prompt,
    text: str,
    scores: tuple[float, ...] | None,
    reason: str | None,
) -> None:
    decoder = script(base, prompt, text)
    answer = read_scores(decoder, base.chat, GroupReader(base).form(LABELS), prompt, "greedy")
    assert (answer.scores, answer.reason, answer.text) == (scores, reason, text)


def test_an_answer_in_the_taught_form_takes_few_passes(base: BaseModel, prompt: Prompt) -> None:
    """Two passes a score: its first digit, then the second one with what follows it. `100` takes two more."""
    for scores, passes in (('"A": 71, "B": 3, "C": 10, "D": 0', 8), ('"A": 71, "B": 3, "C": 100, "D": 0', 10)):
        decoder = script(base, prompt, f'{{"scores": {{{scores}}}}}')
        read_scores(decoder, base.chat, GroupReader(base).form(LABELS), prompt, "greedy")
        assert decoder.passes == passes


def test_an_answer_without_an_end_is_truncated(base: BaseModel, prompt: Prompt) -> None:
    decoder = script(base, prompt, '{"scores": {"A": 71' + "1" * 200)
    answer = read_scores(decoder, base.chat, GroupReader(base).form(LABELS), prompt, "greedy")
    assert (answer.scores, answer.reason) == (None, "truncated")


def test_expectations_are_those_of_all_strings(base: BaseModel, prompt: Prompt) -> None:
    """Every score 0..100 written out and scored on its own; only legal tokens compete at each place."""
    form = GroupReader(base).form(LABELS)
    start = (*prompt.ids, *form.before[0])
    decoder = Decoder(base.model)
    logits = decoder.prefill(embed(base.model, start, prompt.features, prompt.grids), keep=1)
    found, mass = reading._score_distribution(decoder, form, 0, logits[-1])
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-9)
    assert 0.0 < mass < 1.0
    end = form.after(0)
    digits = list(form.digits)
    for score in (0, 4, 10, 37, 99, 100):
        tokens = [*form.score_tokens(score), end]
        legal = [
            digits,
            [end] if score == 0 else [*digits, end],
            [form.digits[0], end] if score in (10, 100) else [end],
        ]
        with torch.no_grad():
            inputs = embed(base.model, (*start, *tokens), prompt.features, prompt.grids)
            rows = answer_logits(base.model, inputs, len(tokens)).double()
        probability = 1.0
        for place, token in enumerate(tokens):
            allowed = legal[place] if place < len(legal) else [end]
            among = rows[place][allowed].softmax(-1)
            probability *= float(among[allowed.index(token)])
        assert float(found[score]) == pytest.approx(probability, rel=1e-3)


def test_digits_that_nobody_would_write_are_no_answer(base: BaseModel, prompt: Prompt) -> None:
    answer = read_scores(Decoder(base.model), base.chat, GroupReader(base).form(LABELS), prompt, "expected")
    assert (answer.scores, answer.reason) == (None, reading.UNLIKELY)


def test_a_truncated_text_is_no_answer() -> None:
    whole = '{"scores": {"A": 1, "B": 2, "C": 3, "D": 4}}'
    assert parse_text(whole, LABELS).scores == (1.0, 2.0, 3.0, 4.0)
    assert parse_text(whole, LABELS, truncated=True).reason == "truncated"
