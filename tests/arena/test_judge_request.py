"""What the server finds in a request, and its scores against the in-process referee's."""

from __future__ import annotations

import json

import pytest

from examples.drills.arena_groups import write_group
from stateplay_rl.arena.dataset import draw_conditions
from stateplay_rl.arena.judge import RefereeJudge
from stateplay_rl.arena.judge_request import read_request, referee_scores
from stateplay_rl.errors import InputError
from stateplay_rl.judges.request_body import body_bytes
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from tests.judges.test_payload import Pictures, build

ORDER = (3, 1, 0, 2)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[StoredGroup]:
    store = GroupStore(tmp_path_factory.mktemp("groups"))
    return [write_group(store, condition, f"g{n}") for n, condition in enumerate(draw_conditions(3, seed=5))]


def request_of(group: StoredGroup, **settings: object) -> dict:
    pictures = Pictures()
    payload = build(group, pictures, order=ORDER, **settings)
    return json.loads(body_bytes(payload, pictures.__getitem__))


def test_the_parts_are_found(groups: list[StoredGroup]) -> None:
    seen = read_request(request_of(groups[0]))
    assert seen.labels == ("A", "B", "C", "D")
    assert {name: len(video.frames) for name, video in seen.videos.items()} == dict.fromkeys(["Reference", *"ABCD"], 24)
    assert seen.videos["A"].indices[0] == 0
    assert seen.videos["A"].indices[-1] == 32
    assert seen.prompt == groups[0].record.prompt


def test_scores_agree_with_the_referee_in_process(groups: list[StoredGroup]) -> None:
    """The server sees 24 of 33 frames through JPEG: a point of difference is allowed."""
    for group in groups:
        scores = referee_scores(read_request(request_of(group)))
        direct = RefereeJudge().score_group(group).scores
        for label, candidate in zip("ABCD", ORDER, strict=True):
            assert scores[label] == pytest.approx(direct[candidate], abs=3.0)


def test_a_hidden_text_is_found_out_from_the_reference(groups: list[StoredGroup]) -> None:
    for group in groups:
        told = referee_scores(read_request(request_of(group)))
        hidden = referee_scores(read_request(request_of(group, include_prompt=False)))
        assert hidden == pytest.approx(told, abs=5.0)


@pytest.mark.parametrize("body", [None, [], {}, {"model": "m"}, {"model": "m", "messages": [{"content": "text"}]}])
def test_no_request(body: object) -> None:
    with pytest.raises(InputError):
        read_request(body)


def test_pictures_that_are_none(groups: list[StoredGroup]) -> None:
    for url in ("https://example.org/a.jpg", "data:image/jpeg;base64,????", "data:image/jpeg;base64,aGVsbG8="):
        body = request_of(groups[0])
        part = next(p for p in body["messages"][0]["content"] if p["type"] == "image_url")
        part["image_url"]["url"] = url
        with pytest.raises(InputError):
            read_request(body)
