"""A body's bytes while they are sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateplay_rl.errors import CorruptionError
from stateplay_rl.judges.request_body import RequestBody, body_bytes
from tests.judges.paid_groups import stored
from tests.judges.test_payload import Pictures, build


def test_the_length_is_exact_and_the_bytes_repeat(tmp_path: Path) -> None:
    pictures = Pictures()
    payload = build(stored(tmp_path / "g", prompt="ünïcode ✓"), pictures)
    body = RequestBody(payload, pictures.__getitem__)
    assert not body.started
    first = b"".join(body)
    assert body.started
    assert len(first) == body.length
    assert b"".join(body) == first == body_bytes(payload, pictures.__getitem__)
    value = json.loads(first)
    assert value["model"] == "gpt-6.1-sol"
    assert "sha256:" not in json.dumps(value)


def test_chunks_are_bounded(tmp_path: Path) -> None:
    pictures = Pictures()
    payload = build(stored(tmp_path / "g", size=(240, 416)), pictures)
    chunks = list(RequestBody(payload, pictures.__getitem__))
    longest = max(len(data) for data in pictures.values())
    assert max(len(chunk) for chunk in chunks) <= (1 << 18) + 2 * longest + 4096


def test_a_damaged_picture_is_not_sent(tmp_path: Path) -> None:
    pictures = Pictures()
    payload = build(stored(tmp_path / "g"), pictures)
    with pytest.raises(CorruptionError, match="damaged"):
        body_bytes(payload, lambda sha256: pictures[sha256][:-1] + b"x")
