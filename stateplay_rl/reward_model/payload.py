"""What a judge was shown for one group, in order: texts and the very JPEG bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.judges import payload as requests
from stateplay_rl.judges.protocol import JudgingProtocol, shuffled_order
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_bytes
from stateplay_rl.stores.foreign import parse_json
from stateplay_rl.stores.groups import StoredGroup

_REFERENCE_FRAME = "Reference, frame "


@dataclass(frozen=True)
class TextPart:
    """A piece of the request's text."""

    text: str


@dataclass(frozen=True)
class ImagePart:
    """A picture as it was sent: JPEG bytes and their sha256."""

    jpeg: bytes
    sha256: str

    @classmethod
    def of(cls, jpeg: bytes) -> ImagePart:
        """A part of its bytes."""
        return cls(jpeg, sha256_bytes(jpeg))


@dataclass(frozen=True)
class GroupPayload:
    """One request.

    Args:
        parts: in the order in which the judge got them.
        labels: the labels shown, in order.
        order: which stored candidate stands under each label.
    """

    parts: tuple[TextPart | ImagePart, ...]
    labels: tuple[str, ...]
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.labels))) or len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels {self.labels} do not name candidates {self.order} once each")

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """The pictures in order."""
        return tuple(part for part in self.parts if isinstance(part, ImagePart))

    def by_label(self, values: Sequence[float]) -> tuple[float, ...]:
        """Values per stored candidate, put in the order of the labels."""
        return tuple(values[candidate] for candidate in self.order)

    def by_candidate(self, values: Sequence[float]) -> tuple[float, ...]:
        """Values per label, put in the order of the stored candidates."""
        found = [0.0] * len(self.order)
        for value, candidate in zip(values, self.order, strict=True):
            found[candidate] = value
        return tuple(found)


def build_from_group(group: StoredGroup, protocol: JudgingProtocol, order: Sequence[int] | None = None) -> GroupPayload:
    """The request that a judge of this protocol gets for a stored group, built by the judge's own builder.

    Args:
        order: candidate under each label; None takes the protocol's own shuffle of this group.

    Raises:
        CorruptionError: a video or picture of the group is damaged.
    """
    count = group.record.candidates
    chosen = shuffled_order(group.record.group_id, count, protocol.config.shuffle_seed) if order is None else order
    pictures: dict[str, bytes] = {}

    def keep(jpeg: bytes) -> str:
        sha256 = sha256_bytes(jpeg)
        pictures[sha256] = jpeg
        return sha256

    built = requests.build_payload(group, protocol, requests.RequestFields({}), chosen, keep)
    parts = tuple(
        TextPart(part.text) if isinstance(part, requests.TextPart) else ImagePart(pictures[part.sha256], part.sha256)
        for part in built.parts
    )
    return GroupPayload(parts, built.labels, built.order)


def read_request(folder: Path, request_id: str, group_id: str) -> GroupPayload:
    """The very request that a paid judge answered, from the request store: same texts, same bytes, same order.

    Args:
        folder: ``requests/``.
        request_id: as the scores record it.
        group_id: the group that it must be about.

    Raises:
        InputError: the store holds no such request.
        CorruptionError: damaged, of another group, or a picture is missing or differs from its hash.
    """
    file = folder / layout.REQUEST_RAW_FOLDER / f"{layout.safe_name(request_id, 'request_id')}.json"
    hint = "restore the request store, or give its place with --set requests=DIR"
    try:
        raw: Mapping[str, Any] = parse_json(file.read_bytes())
        named, labels, order = str(raw["group_id"]), tuple(raw["labels"]), tuple(raw["order"])
        content = raw["request"]["messages"][-1]["content"]
    except FileNotFoundError as error:
        raise InputError(f"{folder} holds no request {request_id} of group {group_id}", hint) from error
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise CorruptionError(f"{file} is damaged: {error!r}", hint) from error
    if named != group_id:
        raise CorruptionError(f"{file} is about group {named}, the scores say {group_id}", hint)
    try:
        parts = tuple(_stored_part(part, folder) for part in content)
        return GroupPayload(parts, labels, order)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise CorruptionError(f"{file}: the request's content is damaged ({error!r})", hint) from error


def _stored_part(part: Mapping[str, Any], folder: Path) -> TextPart | ImagePart:
    if part["type"] == "text":
        return TextPart(str(part["text"]))
    sha256 = str(part["image_url"]["url"]).removeprefix(requests.IMAGE_SCHEME)
    file = folder / layout.REQUEST_IMAGES_FOLDER / f"{layout.safe_name(sha256, 'image sha256')}.jpg"
    try:
        jpeg = file.read_bytes()
    except OSError as error:
        raise CorruptionError(f"picture {file} cannot be read: {error.strerror}", "restore the store") from error
    if sha256_bytes(jpeg) != sha256:
        raise CorruptionError(f"picture {file} does not match its name", "restore the request store")
    return ImagePart(jpeg, sha256)


def without_reference(payload: GroupPayload) -> GroupPayload | None:
    """The request with the reference video left out; None when it shows none."""
    kept: list[TextPart | ImagePart] = []
    hiding = found = False
    for part in payload.parts:
        if isinstance(part, TextPart):
            hiding = part.text == requests.REFERENCE or part.text.startswith(_REFERENCE_FRAME)
            found = found or hiding
        if not hiding:
            kept.append(part)
    return GroupPayload(tuple(kept), payload.labels, payload.order) if found else None


def without_actions(payload: GroupPayload) -> GroupPayload | None:
    """The request with an empty action table; None when it shows none."""
    hidden = TextPart(f"{requests.ACTIONS}\n")
    parts = tuple(
        hidden if isinstance(part, TextPart) and part.text.startswith(requests.ACTIONS) else part
        for part in payload.parts
    )
    return None if parts == payload.parts else GroupPayload(parts, payload.labels, payload.order)
