"""How large a request can get, before there is a group to build it from: for plans and their cost bound."""

from __future__ import annotations

from dataclasses import dataclass

from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.judges.action_table import Window, table_text
from stateplay_rl.judges.frames import frame_indices, shown_size
from stateplay_rl.judges.payload import (
    ACTIONS,
    CANDIDATE,
    END,
    FIRST_FRAME,
    REFERENCE,
    REFERENCE_NAME,
    example_text,
    frame_text,
    image_tokens,
    opponent_text,
    text_tokens,
)
from stateplay_rl.judges.protocol import JudgingProtocol, labels_for


@dataclass(frozen=True)
class GroupShape:
    """What decides the size of a group's request; of several groups, the largest value of each.

    Args:
        candidates: videos that are judged.
        frames: of a video.
        rows: of the action table; in the worst case each is a window of its own, with every button held.
        fps: frames and rows per second.
        width, height: of a video, pixels.
        prompt: the condition's text; of several, the longest.
    """

    candidates: int
    frames: int
    rows: int
    fps: float
    width: int
    height: int
    prompt: str


@dataclass(frozen=True)
class RequestSize:
    """The most that a request of such a group holds: pictures, their pixels together, and input tokens."""

    images: int
    pixels: int
    input_tokens: int


def most_of_request(protocol: JudgingProtocol, shape: GroupShape) -> RequestSize:
    """The largest request that `build_payload` can make of a group of this shape, with its reference video.

    Raises:
        InputError, CorruptionError: an example image is missing or unreadable.
    """
    indices = frame_indices(shape.frames, protocol.config.frames)
    labels = labels_for(shape.candidates)
    width, height = shown_size(shape.width, shape.height, protocol.config.longest_side)
    examples = protocol.examples
    videos = [REFERENCE_NAME, *(f"{CANDIDATE} {label}" for label in labels)]
    rows = [Window(row, row + 1, BUTTONS) for row in range(shape.rows)]
    texts = [
        protocol.instruction(labels),
        *(example_text(number) for number in range(1, len(examples) + 1)),
        FIRST_FRAME,
        opponent_text(shape.prompt) if protocol.config.include_prompt else "",
        f"{ACTIONS}\n{table_text(rows, shape.fps)}",
        REFERENCE,
        *(f"{name}." for name in videos[1:]),
        *(
            frame_text(name, number, len(indices), index / shape.fps)
            for name in videos
            for number, index in enumerate(indices, 1)
        ),
        END,
    ]
    frames = 1 + len(videos) * len(indices)
    return RequestSize(
        images=frames + len(examples),
        pixels=frames * width * height + sum(jpeg.width * jpeg.height for jpeg in examples),
        input_tokens=text_tokens(sum(map(len, texts)))
        + frames * image_tokens(width, height)
        + sum(image_tokens(jpeg.width, jpeg.height) for jpeg in examples),
    )
