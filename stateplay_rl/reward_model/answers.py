"""The answer that the student gives: one fixed JSON form, its tokens, and the trie of the scores 0..100."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from stateplay_rl.errors import UsageError
from stateplay_rl.reward_model.chat import ChatFormat

HIGHEST = 100
_PROBES = (0, 7, 10, 42, 100)


def target_scores(scores: Sequence[float]) -> tuple[int, ...]:
    """Raw scores as the integers that are trained on: rounded half to even, 0..100."""
    return tuple(round(score) for score in scores)


def answer_text(labels: Sequence[str], scores: Sequence[int]) -> str:
    """`{"scores": {"A": 71, ...}}`: what the student is trained to write and what the strict parser reads."""
    return json.dumps({"scores": dict(zip(labels, scores, strict=True))})


@dataclass(frozen=True)
class AnswerForm:
    """The tokens of an answer with the scores left out.

    Args:
        labels: in order.
        before: fixed tokens in front of each label's score.
        end: tokens after the last score, without the end of the turn.
        digits: token of each digit 0..9.
        end_of_turn: the token that ends the answer.
    """

    labels: tuple[str, ...]
    before: tuple[tuple[int, ...], ...]
    end: tuple[int, ...]
    digits: tuple[int, ...]
    end_of_turn: int

    @classmethod
    def of(cls, chat: ChatFormat, labels: Sequence[str]) -> AnswerForm:
        """Take a filled-in answer apart, and check that every answer is put together in the same way.

        Raises:
            UsageError: the tokenizer joins digits with each other or with their neighbours.
        """
        digits = tuple(_single(chat, str(digit)) for digit in range(10))
        marks = [f'{{"scores": {{"{labels[0]}": ']
        marks += [f', "{label}": ' for label in labels[1:]]
        form = cls(
            tuple(labels),
            tuple(tuple(chat.text(mark)) for mark in marks),
            tuple(chat.text("}}")),
            digits,
            chat.end_id,
        )
        for probe in _PROBES:
            scores = [probe, *[HIGHEST - probe] * (len(labels) - 1)]
            if tuple(chat.text(answer_text(labels, scores))) != form.tokens(scores)[:-1]:
                raise UsageError(
                    f"the tokenizer does not write {answer_text(labels, scores)} digit by digit",
                    "this checkpoint's tokenizer is not supported",
                )
        return form

    def tokens(self, scores: Sequence[int]) -> tuple[int, ...]:
        """Tokens of an answer, the end of the turn included."""
        found: list[int] = []
        for mark, score in zip(self.before, scores, strict=True):
            found += [*mark, *self.score_tokens(score)]
        return (*found, *self.end, self.end_of_turn)

    def score_tokens(self, score: int) -> tuple[int, ...]:
        """Tokens of one score."""
        return tuple(self.digits[int(character)] for character in str(score))

    def after(self, label: int) -> int:
        """The token that ends the score of a label, by the label's place."""
        return self.before[label + 1][0] if label + 1 < len(self.labels) else self.end[0]


def _single(chat: ChatFormat, text: str) -> int:
    ids = chat.text(text)
    if len(ids) != 1:
        raise UsageError(f"the tokenizer writes the digit {text} as {len(ids)} tokens", "use Qwen3.5's own tokenizer")
    return ids[0]
