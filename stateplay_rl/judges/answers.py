"""From the text of an HTTP answer to scores: what was received, and what was stored, are read alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateplay_rl.errors import UnparsedAnswer
from stateplay_rl.judges.parsing import ParsedAnswer, parse_answer_with_field
from stateplay_rl.judges.payload import Payload
from stateplay_rl.stores.foreign import parse_json


def read_answer(text: str, payload: Payload, model: str) -> tuple[Mapping[str, Any], ParsedAnswer | None, str]:
    """A stored or received answer: the completion, its scores or None, and the reason code without scores."""
    return read_labelled_answer(text, payload.labels, model)


def read_labelled_answer(
    text: str, labels: tuple[str, ...], model: str
) -> tuple[Mapping[str, Any], ParsedAnswer | None, str]:
    """The same, knowing no more of the request than its labels."""
    completion, choice = _choice(text)
    flat = {
        "message": choice.get("message"),
        "finish_reason": choice.get("finish_reason"),
        "model": completion.get("model"),
    }
    try:
        if not choice:
            raise UnparsedAnswer("no_json", "the answer is no chat completion")
        return completion, parse_answer_with_field(flat, labels=labels, requested_model=model), ""
    except UnparsedAnswer as error:
        return completion, None, f"{error.reason}: {error.detail}" if error.detail else error.reason


def _choice(text: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The completion and its first choice; empty where there is none."""
    try:
        completion = parse_json(text, finite=False)  # a server may send NaN among its log-probabilities
    except ValueError:
        return {}, {}
    if not isinstance(completion, dict):
        return {}, {}
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return completion, {}
    return completion, choices[0]


def usage_of(completion: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Input and output tokens as the server counts them; None where it does not say."""
    usage = completion.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    first, second = (n if isinstance(n, int) and not isinstance(n, bool) and n >= 0 else None for n in counts)
    return first, second
