"""The answer parser against reported answers and more of the same kinds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateplay_rl.errors import UnparsedAnswer
from stateplay_rl.judges.parsing import parse_answer, parse_answer_with_field

LABELS = ("A", "B", "C", "D")
MODEL = "gpt-6.1-sol"
GOOD = '{"scores": {"A": 72, "B": 15.5, "C": 0, "D": 100}}'
OTHER = '{"scores": {"A": 10, "B": 15.5, "C": 0, "D": 100}}'
SCORES = {"A": 72.0, "B": 15.5, "C": 0.0, "D": 100.0}
CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "judge_answers.jsonl").read_text(encoding="utf-8").splitlines()
]


def completion(content: object, *, model: str = MODEL, finish: str | None = "stop", **message: object) -> dict:
    return {"message": {"content": content, **message}, "model": model, "finish_reason": finish}


def reason_of(answer: dict) -> str:
    with pytest.raises(UnparsedAnswer) as caught:
        parse_answer(answer, labels=LABELS, requested_model=MODEL)
    return caught.value.reason


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_reported_answers(case: dict) -> None:
    if "scores" in case["expect"]:
        got = parse_answer(case, labels=case["labels"], requested_model=MODEL)
        assert got == case["expect"]["scores"]
        assert list(got) == case["labels"]
        assert all(type(value) is float for value in got.values())
    else:
        with pytest.raises(UnparsedAnswer) as caught:
            parse_answer(case, labels=case["labels"], requested_model=MODEL)
        assert caught.value.reason == case["expect"]["reason"]


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        "\ufeff" + GOOD,
        f"{GOOD}\n{GOOD}",
        f"```json\n{GOOD}\n```\nIn short: {GOOD}",
        f"The state {{stun}} ends. {GOOD}",
        f'{{"thought": "four videos"}}\n{GOOD}',
        f'First {{"scores": {{"A": 1}}}}, then all: {GOOD}',
        GOOD[:-1] + ', "evidence": {"A": "says {\\"scores\\": 3} in quotes"}}',
        [{"type": "text", "text": GOOD[:20]}, {"type": "text", "text": GOOD[20:]}],
    ],
)
def test_accepted_forms(content: object) -> None:
    assert parse_answer(completion(content), labels=LABELS, requested_model=MODEL) == SCORES


def test_same_scores_with_other_evidence_are_one_answer() -> None:
    text = GOOD[:-1] + ', "evidence": {"A": "x"}} ' + GOOD[:-1] + ', "evidence": {"A": "y"}}'
    assert parse_answer(completion(text), labels=LABELS, requested_model=MODEL) == SCORES


@pytest.mark.parametrize(
    "content, reason",
    [
        (f"```json\n{GOOD}\n```\nbut rather {OTHER}", "ambiguous"),
        (f"<think>{OTHER}</think>{GOOD}", "ambiguous"),
        ('{"A": 1, "B": 2, "C": 3, "D": 4}', "labels"),
        ('{"scores": [1, 2, 3, 4]}', "labels"),
        ('{"scores": null}', "labels"),
        ('{"scores": {"a": 1, "b": 2, "c": 3, "d": 4}}', "labels"),
        (GOOD[:-1] + ', "scores": {"A": 1, "B": 2, "C": 3, "D": 4}}', "labels"),
        ('{"scores": {"A": null, "B": 2, "C": 3, "D": 4}}', "not_a_number"),
        ('{"scores": {"A": [5], "B": 2, "C": 3, "D": 4}}', "not_a_number"),
        ('{"scores": {"A": Infinity, "B": 2, "C": 3, "D": 4}}', "not_a_number"),
        ('{"scores": {"A": 1e999, "B": 2, "C": 3, "D": 4}}', "not_a_number"),
        ('{"scores": {"A": 1' + "0" * 5000 + ', "B": 2, "C": 3, "D": 4}}', "out_of_range"),
        ('{"scores": {"A": -0.001, "B": 2, "C": 3, "D": 4}}', "out_of_range"),
        ("A: 72, B: 15, C: 0, D: 100", "no_json"),
        ("{'scores': {'A': 1, 'B': 2, 'C': 3, 'D': 4}}", "no_json"),
        (GOOD[:-2], "no_json"),
        ("[72, 15, 0, 100]", "no_json"),
        ("{" * 20_000, "no_json"),
        ('{"a":' * 5_000, "no_json"),
        ([], "empty"),
    ],
)
def test_refused_forms(content: object, reason: str) -> None:
    assert reason_of(completion(content)) == reason


@pytest.mark.parametrize(
    "model, same",
    [
        (MODEL, True),
        (MODEL + "-2026-03-01", True),
        (MODEL + "-2026-13-41", False),
        (MODEL + "-mini", False),
        (MODEL + "-mini-2026-03-01", False),
        ("gpt-6.1", False),
        ("relay/" + MODEL, False),
        ("", False),
    ],
)
def test_only_the_model_asked_for_or_its_dated_snapshot(model: str, same: bool) -> None:
    answer = completion(GOOD, model=model)
    if same:
        assert parse_answer(answer, labels=LABELS, requested_model=MODEL) == SCORES
    else:
        assert reason_of(answer) == "model_mismatch"


def test_a_dated_model_asked_for_is_not_the_undated_one() -> None:
    with pytest.raises(UnparsedAnswer) as caught:
        parse_answer(completion(GOOD), labels=LABELS, requested_model=MODEL + "-2026-03-01")
    assert caught.value.reason == "model_mismatch"


def test_missing_model_fails() -> None:
    answer = completion(GOOD)
    del answer["model"]
    assert reason_of(answer) == "model_mismatch"


def test_refusal_and_filter() -> None:
    assert reason_of(completion(GOOD, refusal="no")) == "refused"
    assert reason_of(completion("", finish="content_filter")) == "refused"
    assert reason_of(completion([{"type": "refusal", "refusal": "no"}])) == "refused"


def test_truncated_wins_over_a_complete_object() -> None:
    assert reason_of(completion(GOOD, finish="length")) == "truncated"
    assert reason_of(completion("", finish="length")) == "truncated"


def test_the_field_used_is_recorded_and_content_wins() -> None:
    both = completion(GOOD, reasoning_content=OTHER)
    assert parse_answer_with_field(both, labels=LABELS, requested_model=MODEL).field == "content"
    hidden = completion(None, reasoning_content=GOOD)
    parsed = parse_answer_with_field(hidden, labels=LABELS, requested_model=MODEL)
    assert (parsed.field, parsed.scores) == ("reasoning_content", SCORES)
    assert reason_of(completion("no scores here", reasoning_content=GOOD)) == "no_json"


def test_message_missing_is_empty() -> None:
    assert reason_of({"model": MODEL, "finish_reason": "stop"}) == "empty"
    assert reason_of({"model": MODEL, "finish_reason": "stop", "message": None}) == "empty"


@given(
    cut=st.integers(0, len(GOOD)),
    inserted=st.text(alphabet='{}[]",:ABCD0159.-eNn \\`\n', max_size=12),
    dropped=st.integers(0, 6),
)
def test_a_damaged_answer_gives_valid_scores_or_a_reason(cut: int, inserted: str, dropped: int) -> None:
    text = GOOD[:cut] + inserted + GOOD[cut + dropped :]
    try:
        scores = parse_answer(completion(text), labels=LABELS, requested_model=MODEL)
    except UnparsedAnswer as error:
        reason = error.reason
        scores = {}
    else:
        reason = ""
        assert tuple(scores) == LABELS
    assert all(type(value) is float and 0 <= value <= 100 for value in scores.values())
    assert reason in {"", "empty", "no_json", "ambiguous", "labels", "not_a_number", "out_of_range"}
