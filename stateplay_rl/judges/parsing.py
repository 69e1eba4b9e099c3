"""Read a judge's answer: one pure function, from a chat completion to scores or a reason.

A failure is not a score: whatever does not hold exactly one valid set of scores raises
`UnparsedAnswer` with a reason code, and nothing is clipped, converted or guessed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import date
from typing import Literal

from stateplay_rl.errors import UnparsedAnswer

AnswerField = Literal["content", "reasoning_content"]

LOWEST_SCORE = 0.0
HIGHEST_SCORE = 100.0
_TRUNCATED = frozenset({"length", "max_tokens"})
_FILTERED = frozenset({"content_filter"})
# Python refuses to convert longer digit strings; no such number is a score anyway.
_LONGEST_INTEGER_DIGITS = 300
# Each brace may start a decoding as long as the text: an answer made of braces must not stall the run.
_MOST_BRACES_TRIED = 1000
_LONGEST_EVIDENCE = 2000


@dataclass(frozen=True)
class ParsedAnswer:
    """Scores by label (0..100), the message field that they were read from, and the evidence by label, if any."""

    scores: dict[str, float]
    field: AnswerField
    evidence: dict[str, str] = dataclass_field(default_factory=dict)


class _Object(dict[str, object]):
    """A JSON object that remembers keys given more than once (a plain dict keeps the last)."""

    repeated: frozenset[str] = frozenset()


def _object_from_pairs(pairs: list[tuple[str, object]]) -> _Object:
    result = _Object(pairs)
    if len(result) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        result.repeated = frozenset(name for name, count in counts.items() if count > 1)
    return result


def _integer(text: str) -> int:
    if len(text) <= _LONGEST_INTEGER_DIGITS:
        return int(text)
    beyond: int = 10**_LONGEST_INTEGER_DIGITS
    return -beyond if text.startswith("-") else beyond


_DECODER = json.JSONDecoder(object_pairs_hook=_object_from_pairs, parse_int=_integer)


def parse_answer(completion: Mapping[str, object], *, labels: Sequence[str], requested_model: str) -> dict[str, float]:
    """Scores of a chat completion.

    Args:
        completion: `message` (with `content`, perhaps `reasoning_content` and `refusal`),
            `finish_reason` and `model`, as an OpenAI-compatible API returns them.
        labels: The labels that were shown, each of which must be scored exactly once.
        requested_model: The model asked for; a dated snapshot of it counts as the same.

    Returns:
        Score by label, finite, 0..100, in the order of `labels`.

    Raises:
        UnparsedAnswer: With `.reason` one of `empty`, `no_json`, `ambiguous`, `labels`, `not_a_number`,
            `out_of_range`, `truncated`, `refused`, `model_mismatch`.
    """
    return parse_answer_with_field(completion, labels=labels, requested_model=requested_model).scores


def parse_answer_with_field(
    completion: Mapping[str, object], *, labels: Sequence[str], requested_model: str
) -> ParsedAnswer:
    """As `parse_answer`, and which field of the message the scores came from (for the record)."""
    answered = completion.get("model")
    if not _same_model(answered, requested_model):
        raise UnparsedAnswer("model_mismatch", f"asked for {requested_model!r}, answered by {answered!r}")
    message = completion.get("message")
    message = message if isinstance(message, Mapping) else {}
    content, refusal = _text_and_refusal(message)
    finish_reason = completion.get("finish_reason")
    if refusal or finish_reason in _FILTERED:
        raise UnparsedAnswer("refused", refusal[:200] or f"finish_reason = {finish_reason}")
    if finish_reason in _TRUNCATED:
        raise UnparsedAnswer("truncated", f"finish_reason = {finish_reason}")
    if content.strip():
        return _answer_in_text(content, labels, "content")
    reasoning = message.get("reasoning_content")
    if isinstance(reasoning, str) and reasoning.strip():
        try:
            return _answer_in_text(reasoning, labels, "reasoning_content")
        except UnparsedAnswer as error:
            raise UnparsedAnswer("empty", f"no content; reasoning_content: {error.reason}") from error
    raise UnparsedAnswer("empty", "the message has no content")


def _same_model(answered: object, requested: str) -> bool:
    """The very name, or a dated snapshot of it (`name-YYYY-MM-DD`): relays swap models."""
    if not isinstance(answered, str):
        return False
    if answered == requested:
        return True
    suffix = answered.removeprefix(requested + "-")
    if suffix == answered or len(suffix) != len("YYYY-MM-DD"):
        return False
    try:
        date.fromisoformat(suffix)
    except ValueError:
        return False
    return True


def _text_and_refusal(message: Mapping[str, object]) -> tuple[str, str]:
    """The message's text (a string, or a list of text parts) and its refusal, if any."""
    refusal = message.get("refusal")
    refusal_text = refusal.strip() if isinstance(refusal, str) else ""
    content = message.get("content")
    if isinstance(content, str):
        return content, refusal_text
    texts: list[str] = []
    for part in content if isinstance(content, list) else []:
        if isinstance(part, Mapping):
            if isinstance(part.get("text"), str):
                texts.append(str(part["text"]))
            if isinstance(part.get("refusal"), str):
                refusal_text = refusal_text or str(part["refusal"]).strip()
    return "".join(texts), refusal_text


def _answer_in_text(text: str, labels: Sequence[str], field: AnswerField) -> ParsedAnswer:
    """The one set of scores in `text`: whole text as JSON, else the objects that stand in it.

    A fenced block needs no step of its own: its object is found by the scan, and one that contradicts
    another object outside the fence must count as ambiguous.
    """
    whole = _decode_whole(text)
    if isinstance(whole, _Object):
        return ParsedAnswer(_validated(whole, labels), field, _evidence(whole, labels))
    valid: list[tuple[dict[str, float], _Object]] = []
    refused: list[UnparsedAnswer] = []
    for found in _objects_in(text):
        if "scores" not in found:
            continue
        try:
            scores = _validated(found, labels)
        except UnparsedAnswer as error:
            refused.append(error)
            continue
        if scores not in [known for known, _ in valid]:
            valid.append((scores, found))
    if len(valid) == 1:
        return ParsedAnswer(valid[0][0], field, _evidence(valid[0][1], labels))
    if valid:
        raise UnparsedAnswer("ambiguous", f"{len(valid)} different sets of scores")
    if refused:
        raise refused[-1]
    raise UnparsedAnswer("no_json", "no JSON object with scores in the answer")


def _decode_whole(text: str) -> object:
    try:
        decoded: object = _DECODER.decode(text.strip().removeprefix("\ufeff").strip())
    except (ValueError, RecursionError):
        return None
    return decoded


def _objects_in(text: str) -> Iterator[_Object]:
    """Balanced, decodable `{...}` of the text, outermost first, strings respected."""
    start = text.find("{")
    for _ in range(_MOST_BRACES_TRIED):
        if start == -1:
            return
        try:
            found, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            if isinstance(found, _Object):
                yield found
        start = text.find("{", end)


def _validated(answer: _Object, labels: Sequence[str]) -> dict[str, float]:
    scores = answer.get("scores")
    if "scores" in answer.repeated or not isinstance(scores, _Object):
        raise UnparsedAnswer("labels", "`scores` must be one object with a number per label")
    if scores.repeated:
        raise UnparsedAnswer("labels", f"repeated: {', '.join(sorted(scores.repeated))}")
    if set(scores) != set(labels):
        missing = sorted(set(labels) - set(scores))
        extra = sorted(set(scores) - set(labels))
        raise UnparsedAnswer("labels", f"missing {missing}, extra {extra}")
    return {label: _score(label, scores[label]) for label in labels}


def _evidence(answer: _Object, labels: Sequence[str]) -> dict[str, str]:
    """The judge's words, where it gave some; they decide nothing."""
    evidence = answer.get("evidence")
    if not isinstance(evidence, _Object):
        return {}
    texts = {label: evidence.get(label) for label in labels}
    # Half surrogates (legal in JSON escapes) could not be written to any file.
    return {
        label: text.encode("utf-8", "replace").decode("utf-8")[:_LONGEST_EVIDENCE]
        for label, text in texts.items()
        if isinstance(text, str)
    }


def _score(label: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UnparsedAnswer("not_a_number", f"{label}: {str(value)[:60]!r}")
    if not LOWEST_SCORE <= value <= HIGHEST_SCORE:
        raise UnparsedAnswer("out_of_range", f"{label}: {value:g}")
    return float(value) + 0.0
