"""Two ways to read scores off the student: greedy JSON under the strict parser, or the expected score.

`greedy` is what a server would answer at temperature 0. Fixed parts of the answer are proposed and checked in one
pass; where the model disagrees with a proposal, its own token is taken, so the text is that of plain greedy decoding.
`expected` goes through the labels in order: each score is the mean over the strings 0..100, whose digits form a trie;
earlier scores stand fixed at their most probable string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from stateplay_rl.errors import UnparsedAnswer
from stateplay_rl.judges.parsing import parse_answer
from stateplay_rl.reward_model.answers import HIGHEST, AnswerForm
from stateplay_rl.reward_model.chat import ChatFormat
from stateplay_rl.reward_model.language import AnswerDecoder, embed, plain_model
from stateplay_rl.reward_model.pictures import Grid

Reading = Literal["greedy", "expected"]
MOST_ANSWERS = 2
"""A greedy answer is cut, and then counts as truncated, at so many times the longest answer in the taught form."""
LEAST_LEGAL_MASS = 0.5
"""`expected`: an answer whose digits were less probable than this together is counted as one that does not parse."""
UNLIKELY = "no_score"
"""Reason code of such an answer."""
_SELF = "student"


@dataclass(frozen=True)
class StudentAnswer:
    """What the student said of one group.

    Args:
        scores: points 0..100 in the order of the labels; None when the answer does not parse.
        reason: the parser's reason code when there are no scores.
        text: the answer as text (`expected`: the most probable strings).
        legal_mass: `expected`: smallest probability, over the labels, that the next token was legal at all.
    """

    scores: tuple[float, ...] | None
    reason: str | None
    text: str
    legal_mass: float | None = None


@dataclass(frozen=True)
class Prompt:
    """A group's prompt, ready for the model."""

    ids: tuple[int, ...]
    features: Sequence[Tensor]
    grids: Sequence[Grid]


def read_scores(
    decoder: AnswerDecoder, chat: ChatFormat, form: AnswerForm, prompt: Prompt, reading: Reading
) -> StudentAnswer:
    """The student's scores of one group.

    Args:
        decoder: of the model with its adapter.
        form: the answer's tokens for these labels.
    """
    if reading == "greedy":
        return _greedy(decoder, chat, form, prompt)
    return _expected(decoder, chat, form, prompt)


def parse_text(text: str, labels: Sequence[str], *, truncated: bool = False) -> StudentAnswer:
    """An answer's text through the same strict parser as the API judge's."""
    completion = {
        "message": {"content": text},
        "finish_reason": "length" if truncated else "stop",
        "model": _SELF,
    }
    try:
        scores = parse_answer(completion, labels=labels, requested_model=_SELF)
    except UnparsedAnswer as error:
        return StudentAnswer(None, error.reason, text)
    return StudentAnswer(tuple(scores[label] for label in labels), None, text)


def _most_tokens(form: AnswerForm) -> int:
    return MOST_ANSWERS * len(form.tokens([HIGHEST] * len(form.labels)))


def _start(decoder: AnswerDecoder, form: AnswerForm, prompt: Prompt) -> Tensor:
    """Read the prompt and the answer's first fixed tokens; logits behind each of these."""
    opening = form.before[0]
    # The opening rides along with the prompt: one pass fewer.
    inputs = embed(decoder.model, (*prompt.ids, *opening), prompt.features, prompt.grids)
    return decoder.prefill(inputs, keep=len(opening) + 1)


def _greedy(decoder: AnswerDecoder, chat: ChatFormat, form: AnswerForm, prompt: Prompt) -> StudentAnswer:
    opening = form.before[0]
    logits = _start(decoder, form, prompt)
    chosen = [int(token) for token in logits.argmax(-1)]
    if tuple(chosen[:-1]) != opening:
        return _plain_greedy(decoder, chat, form, prompt)
    answer, token = list(opening), chosen[-1]
    followers = {form.after(i): mark for i, mark in enumerate([*form.before[1:], (*form.end, form.end_of_turn)])}
    while token != form.end_of_turn and len(answer) < _most_tokens(form):
        proposal = _proposal(form, answer, token, followers)
        before = decoder.state() if len(proposal) > 1 else None
        chosen = [int(t) for t in decoder.add(proposal).argmax(-1)]
        agreed = 1
        while agreed < len(proposal) and chosen[agreed - 1] == proposal[agreed]:
            agreed += 1
        if agreed < len(proposal) and before is not None:
            decoder.back_to(before)
            chosen = [int(t) for t in decoder.add(proposal[:agreed]).argmax(-1)]
        answer += proposal[:agreed]
        token = chosen[-1]
        if answer[-1] == form.end_of_turn:
            token = answer.pop()
    return parse_text(chat.decode(answer), form.labels, truncated=token != form.end_of_turn)


def _proposal(form: AnswerForm, answer: Sequence[int], token: int, followers: dict[int, tuple[int, ...]]) -> list[int]:
    """The next token, with the fixed tokens that must follow it when it ends a score.

    A digit behind another one nearly always ends it, too: only `100` has three.
    """
    if not answer or answer[-1] not in form.digits:
        return [token]
    marks = [*form.before, (*form.end, form.end_of_turn)]
    done = sum(mark == tuple(answer[i : i + len(mark)]) for mark in form.before for i in range(len(answer)))
    if done == len(marks):
        return [token]
    if token in followers and marks[done][0] == token:
        return list(marks[done])
    if token in form.digits:
        return [token, *marks[done]]
    return [token]


def _plain_greedy(decoder: AnswerDecoder, chat: ChatFormat, form: AnswerForm, prompt: Prompt) -> StudentAnswer:
    logits = decoder.prefill(embed(decoder.model, prompt.ids, prompt.features, prompt.grids), keep=1)
    answer: list[int] = []
    token = int(logits[-1].argmax())
    while token != form.end_of_turn and len(answer) < _most_tokens(form):
        answer.append(token)
        token = int(decoder.add([token])[-1].argmax())
    return parse_text(chat.decode(answer), form.labels, truncated=token != form.end_of_turn)


def _expected(decoder: AnswerDecoder, chat: ChatFormat, form: AnswerForm, prompt: Prompt) -> StudentAnswer:
    logits = _start(decoder, form, prompt)
    means, best, mass = [], [], 1.0
    for label in range(len(form.labels)):
        probability, legal = _score_distribution(decoder, form, label, logits[-1])
        mass = min(mass, legal)
        means.append(float(probability @ torch.arange(HIGHEST + 1, dtype=torch.float64)))
        best.append(int(probability.argmax()))
        if label + 1 < len(form.labels):
            logits = decoder.add([*form.score_tokens(best[-1]), *form.before[label + 1]])
    text = chat.decode(form.tokens(best)[:-1])
    if mass < LEAST_LEGAL_MASS:
        # It would have written something else: the numbers among what it would not have written mean nothing.
        return StudentAnswer(None, UNLIKELY, text, mass)
    # Rounding may put a mean of 100 a hair above 100.
    scores = tuple(min(max(mean, 0.0), float(HIGHEST)) for mean in means)
    return StudentAnswer(scores, None, text, mass)


def _score_distribution(decoder: AnswerDecoder, form: AnswerForm, label: int, root: Tensor) -> tuple[Tensor, float]:
    """Probability of each string 0..100 [101], and the probability of a legal first token.

    At every node only legal tokens compete: digits first; then another digit or the end of the score; after `10` a
    zero or the end; nothing else may follow two digits.
    """
    digits = torch.tensor(form.digits, device=root.device)
    end = form.after(label)
    first = root.double().softmax(-1)[digits].cpu()
    result = torch.zeros(HIGHEST + 1, dtype=torch.float64)
    share = first / first.sum()
    result[0] = share[0]
    start = decoder.state()
    for digit in range(1, 10):
        decoder.back_to(start)
        choices = _legal(decoder.add([form.digits[digit]])[-1], [*form.digits, end])
        result[digit] = share[digit] * choices[-1]
        result[10 * digit : 10 * digit + 10] = share[digit] * choices[:-1]
        if digit == 1:
            zero, stop = _legal(decoder.add([form.digits[0]])[-1], [form.digits[0], end])
            result[HIGHEST], result[10] = result[10] * zero, result[10] * stop
    decoder.back_to(start)
    return result, float(first.sum())


def _legal(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Probabilities among some tokens, float64 on the CPU."""
    return logits[torch.tensor(list(tokens), device=logits.device)].double().softmax(-1).cpu()


def vocabulary_size(model: Any) -> int:
    """Rows of the output layer."""
    return int(plain_model(model).lm_head.weight.shape[0])
