"""MP4 files: reproducible encoding, sequential decoding, facts by decoding rather than by header.

Shapes: T frames, h w picture height and width, C = 3 colours.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stateplay_rl.errors import CorruptionError, InputError, SprlError
from stateplay_rl.stores.atomic import atomic_path

if TYPE_CHECKING:
    from av.container import InputContainer

_SMALL_PICTURE = 128
_CRF_SMALL = 8
_CRF_LARGE = 18
_MAX_FRAMES = 4096
_MAX_DECODED_BYTES = 4 << 30
CONVERSION_THREADS = 1
"""For turning one frame into RGB. PyAV's own choice starts a thread per core for every frame, which takes longer than
the work, and many times longer on a busy machine; the pixels are the same."""


@dataclass(frozen=True)
class VideoFacts:
    """What a video file is. `frames_declared` is None when the header gives no count."""

    width: int
    height: int
    fps: float
    frames_declared: int | None
    frames_decoded: int
    variable_rate: bool


# The judge and the picture measures read the same small videos one after the other.
_RECENT_VIDEOS = 16
_RECENT_MAX_BYTES = 1 << 20
_recent: dict[tuple[str, int, int, int, int], np.ndarray] = {}
_recent_lock = threading.Lock()


def default_crf(height: int, width: int) -> int:
    """Quality: small pictures need a lower factor, or their few pixels blur."""
    return _CRF_SMALL if max(height, width) <= _SMALL_PICTURE else _CRF_LARGE


def encode_mp4(path: Path, frames_ThwC: np.ndarray, fps: float, crf: int | None = None) -> None:
    """Write an H.264 file, byte-reproducible for equal frames on one encoder version, atomically.

    One thread and ``mbtree=0``: with more, x264's decisions depend on timing.

    Args:
        path: final name.
        frames_ThwC: uint8 [T, h, w, 3] RGB, h and w even (yuv420p halves them).
        fps: frames per second.
        crf: constant rate factor; None chooses by size.

    Raises:
        ValueError: wrong shape, type or odd size.
        OutsideError: disk full or read-only.
    """
    if frames_ThwC.dtype != np.uint8 or frames_ThwC.ndim != 4 or frames_ThwC.shape[-1] != 3:
        raise ValueError(f"frames must be uint8 [T, h, w, 3], got {frames_ThwC.dtype} {frames_ThwC.shape}")
    count, height, width, _ = frames_ThwC.shape
    if count == 0 or height % 2 or width % 2:
        raise ValueError(f"a video needs at least one frame and even sizes, got {frames_ThwC.shape}")
    quality = default_crf(height, width) if crf is None else crf
    with atomic_path(path, needed_bytes=frames_ThwC.nbytes // 10) as temp:
        _encode(temp, frames_ThwC, fps, quality)


def _encode(path: Path, frames_ThwC: np.ndarray, fps: float, crf: int) -> None:
    import av

    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream: Any = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames_ThwC.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.options = {"crf": str(crf), "preset": "veryfast", "x264-params": "mbtree=0:threads=1"}
        for picture in frames_ThwC:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def decode_mp4(path: Path, max_frames: int = _MAX_FRAMES) -> np.ndarray:
    """All frames in order, decoded sequentially (seeking by index is slower and easier to get wrong).

    Returns:
        uint8 [T, h, w, 3] RGB.

    Raises:
        CorruptionError: truncated or damaged.
        InputError: missing, no video, or too large.
    """
    key = _file_key(path, max_frames)
    with _recent_lock:
        found = _recent.get(key) if key is not None else None
    if found is not None:
        return found.copy()
    decoded = _decode(path, max_frames)
    if key is not None and decoded.nbytes <= _RECENT_MAX_BYTES:
        with _recent_lock:
            _recent[key] = decoded.copy()
            while len(_recent) > _RECENT_VIDEOS:
                _recent.pop(next(iter(_recent)))
    return decoded


def _file_key(path: Path, max_frames: int) -> tuple[str, int, int, int, int] | None:
    """The limit is part of the key: a video that one caller accepts may be too long for another."""
    try:
        status = path.stat()
    except OSError:
        return None
    return str(path), status.st_mtime_ns, status.st_size, status.st_ino, max_frames


def _decode(path: Path, max_frames: int) -> np.ndarray:
    frames: list[np.ndarray] = []
    with _opened(path) as (container, stream):
        limit = min(max_frames, _MAX_DECODED_BYTES // max(1, 3 * stream.width * stream.height))
        for frame in container.decode(stream):
            if len(frames) == limit:
                raise InputError(f"{path} has more than {limit} frames of {stream.width}x{stream.height}", "cut it")
            frames.append(frame.to_ndarray(format="rgb24", threads=CONVERSION_THREADS))
        declared = stream.frames
    if not frames or len({frame.shape for frame in frames}) > 1:
        raise CorruptionError(f"{path} decodes to {len(frames)} frames of differing sizes", "replace the file")
    if declared and len(frames) < declared:
        raise CorruptionError(f"{path} is truncated: {len(frames)} of {declared} frames decode", "replace the file")
    return np.stack(frames)


def decode_frames(path: Path, indices: Sequence[int], expected_frames: int) -> np.ndarray:
    """Some frames of a video; all are decoded in order, only these are converted and held.

    Args:
        path: the file.
        indices: wanted frames, ascending.
        expected_frames: what the whole video must hold.

    Returns:
        uint8 [len(indices), h, w, 3] RGB.

    Raises:
        CorruptionError: damaged, or another number of frames.
        InputError: missing or no video.
    """
    wanted = set(indices)
    frames: list[np.ndarray] = []
    count = 0
    from av.video.reformatter import VideoReformatter

    # One for all frames: a frame's own conversion sets up its tables anew every time.
    reformatter = VideoReformatter()
    with _opened(path) as (container, stream):
        for frame in container.decode(stream):
            if count in wanted:
                frames.append(reformatter.reformat(frame, format="rgb24", threads=CONVERSION_THREADS).to_ndarray())
            count += 1
            if count > expected_frames:
                break
    if count != expected_frames or len({frame.shape for frame in frames}) != 1:
        more = "or more " if count > expected_frames else ""
        raise CorruptionError(
            f"{path} has {count} {more}frames, {expected_frames} were recorded for it",
            "restore the file from a copy, or make it again",
        )
    return np.stack(frames)


def probe_mp4(path: Path, max_frames: int = _MAX_FRAMES) -> VideoFacts:
    """Facts of a video by decoding it; frames beyond `max_frames` are an error.

    A truncated file is reported by `frames_decoded` < `frames_declared`, unless its header is lost.

    Raises:
        CorruptionError: the file cannot be decoded at all.
        InputError: missing, no video, or too long.
    """
    times: list[int] = []  # in the stream's time base: a fraction for every frame costs an eighth of the decoding
    with _opened(path) as (container, stream):
        width, height = stream.width, stream.height
        rate = stream.average_rate or stream.guessed_rate
        declared = int(stream.frames) or None
        tick = Fraction(stream.time_base)
        for frame in container.decode(stream):
            if len(times) == max_frames:
                raise InputError(f"{path} has more than {max_frames} frames", "cut it")
            times.append(frame.pts or 0)
    if not times:
        raise CorruptionError(f"{path} holds no decodable frame", "replace the file")
    steps = [later - earlier for earlier, later in pairwise(times)]
    # 2 ms: containers round times to their time base, which may be a millisecond.
    variable = bool(steps) and (max(steps) - min(steps)) * tick > Fraction(1, 500)
    fps = float(rate) if rate else (float(1 / (steps[0] * tick)) if steps and steps[0] else 0.0)
    return VideoFacts(width, height, fps, declared, len(times), variable)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[InputContainer, Any]]:
    """Open a file for decoding; libav's errors become ours."""
    import av

    if not path.is_file():
        raise InputError(f"video {path} does not exist or is no file", "check the path")
    if path.stat().st_size == 0:
        raise CorruptionError(f"video {path} is empty (0 bytes)", "replace the file")
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise CorruptionError(f"{path} has no video stream", "replace the file")
            stream = container.streams.video[0]
            if stream.codec_context is None or stream.time_base is None:
                raise CorruptionError(f"{path} has no decodable video stream", "replace the file")
            stream.codec_context.thread_count = 1
            yield container, stream
    except SprlError:
        raise
    except av.FFmpegError as error:
        raise CorruptionError(f"video {path} is damaged: {error.strerror}", "replace the file") from error
    except (ValueError, EOFError, ArithmeticError, MemoryError) as error:
        # Names that are not UTF-8, rates of 0/0, sizes beyond reason: raised between libav and Python.
        raise CorruptionError(f"video {path} is damaged: {error!s:.200}", "replace the file") from error
