"""One pass over a clip's video: is it sound, how many frames decode, and what is its first frame."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from stateplay_rl.conditions.codes import RowRejected
from stateplay_rl.config.conditions import ClipRules
from stateplay_rl.stores.video import CONVERSION_THREADS

# Share of a frame's duration by which a time stamp may be off: containers round to their time base.
TIMING_TOLERANCE = 0.25
ASPECT_TOLERANCE = 4.0
SMALLEST_SIDE = 16


@dataclass(frozen=True)
class VideoReading:
    """What one pass found: frames that decode, whether the container declares them, and the first picture.

    Args:
        frames: frames counted by decoding.
        declared: frames that the container states; 0 when it states none.
        first_frame_hwC: uint8 RGB in the video's own size.
    """

    frames: int
    declared: int
    first_frame_hwC: NDArray[np.uint8]


def check_picture_size(width: int, height: int, rules: ClipRules) -> None:
    """Reject pictures that would cost too much, or whose aspect is far from the model's.

    Scaling an extreme aspect to cover the model's picture would need memory without bound.
    """
    stretch = (width / max(height, 1)) / (rules.frame_width / rules.frame_height)
    too_small = min(width, height) < SMALLEST_SIDE
    too_large = width * height > rules.max_picture_pixels
    if too_small or too_large or not 1 / ASPECT_TOLERANCE <= stretch <= ASPECT_TOLERANCE:
        raise RowRejected("picture_size", f"{width}x{height} for a model of {rules.frame_width}x{rules.frame_height}")


def read_video(path: Path, rules: ClipRules) -> VideoReading:
    """Decode a video once, count its frames and keep the first.

    The loop filter is off for all but key frames: it changes pixels that nobody looks at, and a tenth of the
    time is in it. The first frame must therefore be a key frame, else it is decoded again in full.

    Args:
        path: a regular file.
        rules: frame rate, sizes and lengths that are accepted.

    Raises:
        RowRejected: with the reason.
    """
    try:
        with av.open(str(path), mode="r") as container:
            reading, first_is_key = _decode(container, rules, {"skip_loop_filter": "nokey"})
        if not first_is_key:
            with av.open(str(path), mode="r") as container:
                reading, _ = _decode(container, rules, {})
    except (av.error.FFmpegError, ValueError, EOFError, ArithmeticError, MemoryError) as error:
        raise RowRejected("unreadable_video", _short(error)) from error
    _check_length(reading, rules)
    return reading


def _decode(container: Any, rules: ClipRules, options: dict[str, str]) -> tuple[VideoReading, bool]:
    if not container.streams.video:
        raise RowRejected("unreadable_video", "no video stream")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        raise RowRejected("unreadable_video", "no decoder for its codec")
    check_picture_size(stream.width, stream.height, rules)
    _check_rate(stream, rules)
    stream.codec_context.options = options
    stream.codec_context.thread_count = 1  # rows run in parallel already; the result must not depend on it
    times: list[int] = []
    first: NDArray[np.uint8] | None = None
    first_is_key = False
    limit = rules.max_frames + 1
    try:
        for frame in container.decode(stream):
            if frame.is_corrupt:
                raise RowRejected("truncated_video", f"frame {len(times)} is damaged")
            if first is None:
                check_picture_size(frame.width, frame.height, rules)
                first, first_is_key = (
                    frame.to_ndarray(format="rgb24", threads=CONVERSION_THREADS),
                    bool(frame.key_frame),
                )
            if frame.pts is None:
                raise RowRejected("variable_frame_rate", f"frame {len(times)} has no time stamp")
            times.append(frame.pts)
            if len(times) > limit:
                break
    except (av.error.FFmpegError, EOFError) as error:
        raise RowRejected("truncated_video", f"after {len(times)} frames: {_short(error)}") from error
    if first is None:
        raise RowRejected("truncated_video", "no frame can be decoded")
    if len(times) > limit:
        raise RowRejected("too_many_frames", f"more than {rules.max_frames} frames")
    declared = int(stream.frames)
    if declared not in (0, len(times)):
        found = f"the container declares {declared} frames, {len(times)} decode"
        # A cut may fall between two frames: then nothing is damaged, but the file ends inside a box.
        missing = missing_bytes(Path(container.name))
        if missing:
            raise RowRejected("truncated_video", f"{found}; {missing} bytes are missing at the end")
        raise RowRejected("frame_count_mismatch", found)
    _check_times(times, stream, rules)
    return VideoReading(len(times), declared, first), first_is_key


def _check_rate(stream: Any, rules: ClipRules) -> None:
    rate = stream.average_rate or stream.guessed_rate
    if not rate:
        raise RowRejected("no_fps", "the stream states no frame rate")
    if abs(float(rate) / rules.fps - 1) > 0.001 and int(stream.frames) != 1:
        # A stream with uneven frames states an average; say so instead of quoting it.
        base = stream.base_rate
        uneven = base and abs(float(base) / float(rate) - 1) > 0.01
        code = "variable_frame_rate" if uneven else "wrong_fps"
        raise RowRejected(code, f"{float(rate):.3f} frames a second, expected {rules.fps:g}")


def _check_times(times: list[int], stream: Any, rules: ClipRules) -> None:
    if len(times) < 2 or stream.time_base is None:
        return
    steps = np.diff(np.asarray(times, dtype=np.float64)) * float(stream.time_base) * rules.fps
    worst = int(np.argmax(np.abs(steps - 1)))
    if abs(steps[worst] - 1) > TIMING_TOLERANCE:
        where = f"frame {worst + 1} comes {steps[worst]:.2f} frame durations after the one before it"
        raise RowRejected("variable_frame_rate", where)


def _check_length(reading: VideoReading, rules: ClipRules) -> None:
    if reading.frames == 1:
        raise RowRejected("one_frame", "the video has one frame")
    check_length(reading.frames, rules)


def check_length(frames: int, rules: ClipRules) -> None:
    """Reject a number of frames that is too small or too large for the model."""
    smallest = (rules.min_latent_frames - 1) * rules.temporal_factor + 1
    if frames < smallest:
        raise RowRejected("too_short", f"{frames} frames, at least {smallest} are needed")
    if frames > rules.max_frames:
        raise RowRejected("too_many_frames", f"{frames} frames, at most {rules.max_frames} are used")


def _short(error: BaseException) -> str:
    """The cause without the path, which the row states already."""
    cause = error.strerror if isinstance(error, av.error.FFmpegError) else str(error)
    return (cause or type(error).__name__)[:200]


def missing_bytes(path: Path) -> int:
    """Bytes that an MP4's top-level boxes claim beyond the end of the file; 0 when they fit, or for other files."""
    size = path.stat().st_size
    with path.open("rb") as file:
        offset = 0
        while offset + 8 <= size:
            file.seek(offset)
            header = file.read(16)
            length = int.from_bytes(header[:4], "big")
            if length == 1 and len(header) == 16:
                length = int.from_bytes(header[8:], "big")
            if length < 8:
                return 0
            offset += length
    return max(0, offset - size)
