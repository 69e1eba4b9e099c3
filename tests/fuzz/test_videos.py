"""Fuzzing: MP4 files, probed, decoded, and examined as clips."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given

from stateplay_rl.conditions.codes import RowRejected
from stateplay_rl.conditions.video import read_video
from stateplay_rl.stores.video import decode_frames, decode_mp4, encode_mp4, probe_mp4
from tests.conditions.clip_factory import arena_config, pictures
from tests.fuzz.damage import damaged, fuzzed, reads_or_says_why


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("video") / "v.mp4"
    encode_mp4(file, pictures(0, 9), 20.0)
    return file.read_bytes()


def test_video_bytes(tmp_path: Path, sound: bytes) -> None:
    file = tmp_path / "v.mp4"
    rules = arena_config().clip

    @fuzzed
    @given(data=damaged(sound))
    def check(data: bytes) -> None:
        file.write_bytes(data)
        reads_or_says_why(lambda: probe_mp4(file))
        reads_or_says_why(lambda: decode_mp4(file))
        reads_or_says_why(lambda: decode_frames(file, [0, 4], 9))
        with contextlib.suppress(RowRejected):
            read_video(file, rules)

    check()


def test_headers_of_the_container(tmp_path: Path, sound: bytes) -> None:
    """The same, with the damage where sizes, rates and tables stand: the boxes after the pictures."""
    head = sound.find(b"moov") - 4
    assert head >= 0
    file = tmp_path / "v.mp4"

    @fuzzed
    @given(data=damaged(sound[head:]))
    def check(data: bytes) -> None:
        file.write_bytes(sound[:head] + data)
        reads_or_says_why(lambda: probe_mp4(file, max_frames=100))
        reads_or_says_why(lambda: decode_mp4(file, max_frames=100))

    check()
