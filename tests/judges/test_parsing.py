"""The answer parser against reported answers and more of the same kinds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
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


# --- fuzz: nothing but UnparsedAnswer, and no score that does not stand in the answer ---

NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
REASONS = {
    "empty",
    "no_json",
    "ambiguous",
    "labels",
    "not_a_number",
    "out_of_range",
    "truncated",
    "refused",
    "model_mismatch",
}
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.integers(0, 100),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=20),
    st.sampled_from(["85", "85/100", "A", "NaN", '{"scores": {"A": 1, "B": 2, "C": 3, "D": 4}}']),
)
keys = st.one_of(st.sampled_from(["scores", "A", "B", "C", "D", "E", "evidence", "a", ""]), st.text(max_size=5))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=5)),
    max_leaves=12,
)
score_sets = st.fixed_dictionaries({label: st.one_of(st.integers(-5, 105), scalars) for label in LABELS})
answers = st.one_of(values, st.fixed_dictionaries({"scores": st.one_of(score_sets, values)}))
json_texts = answers.map(lambda value: json.dumps(value, ensure_ascii=False))
noise = st.one_of(
    st.text(max_size=30), st.sampled_from(["```json\n", "\n```", "{", "}", "[", '"', "\ufeff", "<think>"])
)
texts = st.lists(st.one_of(json_texts, noise), max_size=5).map("".join)
contents = st.one_of(texts, scalars, st.lists(st.one_of(scalars, st.fixed_dictionaries({"text": texts})), max_size=3))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    content=contents,
    reasoning=st.one_of(st.none(), texts, scalars),
    refusal=st.one_of(st.none(), st.just(""), scalars),
    finish=st.one_of(st.sampled_from(["stop", "length", "content_filter", None]), scalars),
    model=st.one_of(st.just(MODEL), st.just(MODEL), st.just(MODEL + "-2026-01-31"), scalars),
    message=st.one_of(st.none(), scalars),
)
def test_any_completion_gives_scores_that_stand_in_it_or_a_reason(
    content: object, reasoning: object, refusal: object, finish: object, model: object, message: object
) -> None:
    whole = {"content": content, "reasoning_content": reasoning, "refusal": refusal}
    answer = {"message": whole if message is None else message, "finish_reason": finish, "model": model}
    reason, scores = "", {}
    try:
        scores = parse_answer(answer, labels=LABELS, requested_model=MODEL)
    except UnparsedAnswer as error:
        reason = error.reason
    assert reason in REASONS if not scores else tuple(scores) == LABELS
    shown = json.dumps([content, reasoning], ensure_ascii=False)
    standing = {float(number) for number in NUMBER.findall(shown)}
    assert all(score in standing and 0 <= score <= 100 for score in scores.values())


@settings(max_examples=200, deadline=None)
@given(scores=st.fixed_dictionaries({label: st.floats(0, 100) | st.integers(0, 100) for label in LABELS}), around=noise)
def test_a_valid_answer_is_read_exactly(scores: dict[str, float], around: str) -> None:
    text = json.dumps({"scores": scores})
    assert parse_answer(completion(text), labels=LABELS, requested_model=MODEL) == scores
    if not set(around) & set('{}[]"'):
        assert parse_answer(completion(around + text + around), labels=LABELS, requested_model=MODEL) == scores


def test_evidence_is_kept_and_decides_nothing() -> None:
    text = '{"scores": {"A": 1, "B": 2, "C": 3, "D": 4}, "evidence": {"A": "hit", "B": 7, "X": "no", "C": "\\ud800"}}'
    parsed = parse_answer_with_field(completion(text), labels=LABELS, requested_model=MODEL)
    assert parsed.evidence == {"A": "hit", "C": "?"}
    for odd in ('"evidence": 3', '"evidence": null', '"evidence": ["x"]'):
        told = '{"scores": {"A": 1, "B": 2, "C": 3, "D": 4}, ' + odd + "}"
        assert parse_answer_with_field(completion(told), labels=LABELS, requested_model=MODEL).evidence == {}
