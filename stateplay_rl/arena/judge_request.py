"""Reads a judge's request as the arena's server gets it, and scores the candidates that it finds in the pictures.

Nothing but the request is used: first frame, buttons, text and frames, as an API judge would get them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena import referee
from stateplay_rl.arena.game import simulate_first
from stateplay_rl.arena.opponent import STRATEGIES
from stateplay_rl.arena.pixels import read_first_state
from stateplay_rl.arena.prompts import read_strategy
from stateplay_rl.arena.state import FPS, Trajectory
from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.errors import InputError
from stateplay_rl.judges.action_table import Window, read_table
from stateplay_rl.judges.payload import ACTIONS, CANDIDATE, FIRST_FRAME, OPPONENT
from stateplay_rl.stores.foreign import parse_json
from stateplay_rl.stores.pictures import decode_picture

_FRAME = re.compile(r"(Reference|" + CANDIDATE + r" ([A-Z])), frame \d+ of \d+, time (\d+\.\d+) s:")
_OPPONENT = re.compile(r"<opponent>(.*)</opponent>", re.DOTALL)
_DATA_URL = "data:image/jpeg;base64,"
REFERENCE = "Reference"


@dataclass
class SeenVideo:
    """Frames of one video and the index of each in the clip."""

    indices: list[int] = field(default_factory=list)
    frames: list[NDArray[np.uint8]] = field(default_factory=list)


@dataclass(frozen=True)
class SeenRequest:
    """What a request shows. `videos` by label, in the order in which they stand; the reference under its name.

    `prompt` is None when the request does not tell it.
    """

    model: str
    labels: tuple[str, ...]
    first_frame: NDArray[np.uint8]
    windows: tuple[Window, ...]
    videos: Mapping[str, SeenVideo]
    prompt: str | None
    text_characters: int
    pixels: int


def read_request(body: Any) -> SeenRequest:
    """Find the parts of a request.

    Raises:
        InputError: no request of the protocol, or pictures that are none.
    """
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise InputError("the request has no model")
    texts = pixels = 0
    first: NDArray[np.uint8] | None = None
    windows: tuple[Window, ...] = ()
    prompt: str | None = None
    videos: dict[str, SeenVideo] = {}
    before = ""
    for part in _parts(body):
        if part.get("type") == "text":
            before = str(part.get("text", ""))
            texts += len(before)
            if before.startswith(ACTIONS):
                windows = read_table(before, FPS)
            elif before.startswith(OPPONENT):
                prompt = _quoted_prompt(before)
            continue
        picture = _picture(part)
        pixels += picture.shape[0] * picture.shape[1]
        match = _FRAME.fullmatch(before)
        if before == FIRST_FRAME:
            first = picture
        elif match is not None:
            video = videos.setdefault(match.group(2) or REFERENCE, SeenVideo())
            video.indices.append(round(float(match.group(3)) * FPS))
            video.frames.append(picture)
    labels = tuple(name for name in videos if name != REFERENCE)
    if first is None or not windows or not labels:
        raise InputError("the request holds no first frame, no action table or no candidate")
    return SeenRequest(body["model"], labels, first, windows, videos, prompt, texts, pixels)


def referee_scores(request: SeenRequest) -> dict[str, float]:
    """The referee's points by label, from the frames that the request shows.

    Raises:
        InputError: the pictures or the text are not arena's.
    """
    frames = 1 + max(max(video.indices) for video in request.videos.values())
    truth = _truth(request, frames)
    return {label: _compare(request.videos[label], truth).score for label in request.labels}


def _truth(request: SeenRequest, frames: int) -> Trajectory:
    """The engine's own future; without a text, that of the strategy which fits the reference best."""
    first = read_first_state(request.first_frame)
    held_RK = _held_rows(request.windows, frames)
    if request.prompt is not None:
        return simulate_first(first, held_RK, read_strategy(request.prompt).name, frames=frames)
    reference = request.videos.get(REFERENCE)
    if reference is None:
        raise InputError("neither a text about the opponent nor a reference tells its strategy")
    futures = [simulate_first(first, held_RK, strategy.name, frames=frames) for strategy in STRATEGIES]
    return max(futures, key=lambda truth: _compare(reference, truth).total)


def _compare(video: SeenVideo, truth: Trajectory) -> referee.RefereeReport:
    shown = Trajectory(truth.values_TPF[video.indices], truth.timer_T[video.indices], ())
    return referee.compare(np.stack(video.frames), shown)


def _held_rows(windows: tuple[Window, ...], frames: int) -> NDArray[np.uint8]:
    rows = max(frames - 1, *(window.last for window in windows))
    if rows > 100_000:
        raise InputError("the action table reaches beyond any clip")
    held_RK = np.zeros((rows, len(BUTTONS)), np.uint8)
    for window in windows:
        for name in window.held:
            held_RK[window.first : window.last, BUTTONS.index(name)] = 1
    return held_RK


def _parts(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict):
                yield part


def _quoted_prompt(text: str) -> str:
    match = _OPPONENT.search(text)
    try:
        prompt = parse_json(match.group(1)) if match else None
    except ValueError as error:
        raise InputError("the text about the opponent is no JSON string") from error
    if not isinstance(prompt, str):
        raise InputError("the text about the opponent is no JSON string")
    return prompt


def _picture(part: Mapping[str, Any]) -> NDArray[np.uint8]:
    place = part.get("image_url")
    url = place.get("url") if isinstance(place, dict) else None
    if not isinstance(url, str) or not url.startswith(_DATA_URL):
        raise InputError("a picture is no JPEG data URL")
    try:
        data = base64.b64decode(url[len(_DATA_URL) :], validate=True)
    except binascii.Error as error:
        raise InputError(f"a picture is no base64: {error}") from error
    return decode_picture(data, "a picture", ("JPEG",))
