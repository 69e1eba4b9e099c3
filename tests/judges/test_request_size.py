"""The most that a request can hold, against requests that were built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.judges.protocol import JudgingProtocol
from stateplay_rl.judges.request_size import GroupShape, most_of_request
from stateplay_rl.stores.groups import StoredGroup
from tests.judges.paid_groups import stored
from tests.judges.test_payload import build
from tests.judges.test_protocol import examples


def shape_of(group: StoredGroup, width: int, height: int) -> GroupShape:
    record = group.record
    return GroupShape(
        candidates=record.candidates,
        frames=record.frames,
        rows=len(record.buttons),
        fps=record.fps,
        width=width,
        height=height,
        prompt=record.prompt,
    )


@pytest.mark.parametrize("settings", [{}, {"frames": 4, "include_prompt": False, "longest_side": 16}])
def test_no_request_of_the_shape_is_larger(tmp_path: Path, settings: dict[str, int]) -> None:
    group = stored(tmp_path)
    payload = build(group, **settings)
    first = payload.images[0]
    real = shape_of(group, 48, 32)
    most = most_of_request(JudgingProtocol(ProtocolConfig(**settings)), real)
    assert most.images == len(payload.images)
    assert most.pixels == sum(image.width * image.height for image in payload.images)
    assert (first.width, first.height) == ((48, 32) if not settings else (16, 11))
    assert payload.estimated_input_tokens() <= most.input_tokens
    # Only how often buttons change is not known beforehand: a line of the table has at most 80 characters.
    assert most.input_tokens - payload.estimated_input_tokens() <= 20 * real.rows


def test_example_images_and_a_longer_prompt_count(tmp_path: Path) -> None:
    group = stored(tmp_path)
    plain = most_of_request(JudgingProtocol(ProtocolConfig()), shape_of(group, 48, 32))
    with_examples = JudgingProtocol(ProtocolConfig(example_images=examples(tmp_path)))
    more = most_of_request(with_examples, shape_of(group, 48, 32))
    assert more.images == plain.images + 3
    assert more.pixels > plain.pixels
    longer = replace(shape_of(group, 48, 32), prompt=group.record.prompt + "x" * 400)
    assert most_of_request(JudgingProtocol(ProtocolConfig()), longer).input_tokens == plain.input_tokens + 100


def test_a_real_group_of_the_plan() -> None:
    """Five videos of 24 frames and the first frame, 832x480: 121 pictures of 390 tokens, and the text."""
    real = GroupShape(candidates=4, frames=97, rows=97, fps=20.0, width=832, height=480, prompt="")
    most = most_of_request(JudgingProtocol(ProtocolConfig()), real)
    assert most.images == 121
    assert most.pixels == 121 * 832 * 480
    assert 121 * 390 < most.input_tokens < 121 * 390 + 8000
