"""Videos: reproducible bytes, exact counts, damage named."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores.video import decode_frames, decode_mp4, encode_mp4, probe_mp4
from tests.stores.helpers import pictures


def test_bytes_are_reproducible_and_pictures_survive(tmp_path: Path) -> None:
    frames = pictures(21, height=64, width=96)
    encode_mp4(tmp_path / "a.mp4", frames, 20.0)
    encode_mp4(tmp_path / "b.mp4", frames, 20.0)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    decoded = decode_mp4(tmp_path / "a.mp4")
    assert decoded.shape == frames.shape
    assert np.abs(decoded.astype(int) - frames).mean() < 3


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_pixels_do_not_depend_on_threads(tmp_path: Path, threads: int) -> None:
    """One thread converts frames here; videos that were read with PyAV's own number must read the same."""
    encode_mp4(tmp_path / "a.mp4", pictures(5, height=48, width=80), 20.0)
    with av.open(str(tmp_path / "a.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24", threads=threads) for frame in container.decode(video=0)]
    assert np.array_equal(np.stack(frames), decode_mp4(tmp_path / "a.mp4"))
    assert np.array_equal(np.stack(frames[1:4:2]), decode_frames(tmp_path / "a.mp4", [1, 3], 5))


def test_facts_come_from_decoding(tmp_path: Path) -> None:
    encode_mp4(tmp_path / "a.mp4", pictures(9), 20.0)
    facts = probe_mp4(tmp_path / "a.mp4")
    assert (facts.width, facts.height, facts.fps) == (32, 16, 20.0)
    assert (facts.frames_declared, facts.frames_decoded, facts.variable_rate) == (9, 9, False)


def test_a_single_frame_is_a_video(tmp_path: Path) -> None:
    encode_mp4(tmp_path / "a.mp4", pictures(1), 20.0)
    assert decode_mp4(tmp_path / "a.mp4").shape[0] == 1
    assert probe_mp4(tmp_path / "a.mp4").variable_rate is False


def test_a_variable_rate_is_seen(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "v.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=20)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for picture, milliseconds in zip(pictures(5), (0, 50, 100, 400, 450)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = milliseconds, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert probe_mp4(tmp_path / "v.mp4").variable_rate is True


@pytest.mark.parametrize("keep", [0, 10, 200, -400])
def test_a_truncated_file_is_corrupt_or_short(tmp_path: Path, keep: int) -> None:
    encode_mp4(tmp_path / "a.mp4", pictures(40, height=64, width=96), 20.0)
    data = (tmp_path / "a.mp4").read_bytes()
    (tmp_path / "t.mp4").write_bytes(data[:keep])
    with pytest.raises(CorruptionError, match=r"t\.mp4"):
        decode_mp4(tmp_path / "t.mp4")
    try:
        facts = probe_mp4(tmp_path / "t.mp4")
    except CorruptionError:
        return
    assert facts.frames_declared is not None
    assert facts.frames_decoded < facts.frames_declared


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        decode_mp4(tmp_path / "no.mp4")
    (tmp_path / "text.mp4").write_text("not a video at all" * 50)
    with pytest.raises(CorruptionError, match="damaged"):
        probe_mp4(tmp_path / "text.mp4")


def test_too_long_is_refused_while_decoding(tmp_path: Path) -> None:
    encode_mp4(tmp_path / "a.mp4", pictures(9), 20.0)
    for read in (decode_mp4, probe_mp4):
        with pytest.raises(InputError, match="more than 8 frames"):
            read(tmp_path / "a.mp4", 8)


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((0, 16, 16, 3), np.uint8),
        np.zeros((2, 15, 16, 3), np.uint8),
        np.zeros((2, 16, 16), np.uint8),
        np.zeros((2, 16, 16, 3), np.float32),
    ],
)
def test_wrong_frames_are_refused(tmp_path: Path, frames: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"frames|video"):
        encode_mp4(tmp_path / "a.mp4", frames, 20.0)
    assert list(tmp_path.iterdir()) == []


def test_a_recent_decode_does_not_lift_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    encode_mp4(path, np.zeros((5, 16, 16, 3), np.uint8), 20.0)
    assert len(decode_mp4(path)) == 5
    with pytest.raises(InputError, match="more than 3 frames"):
        decode_mp4(path, max_frames=3)
