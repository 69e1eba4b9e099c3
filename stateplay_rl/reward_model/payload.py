"""What a judge was shown for one group, in order: texts and the very JPEG bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stateplay_rl.judges import payload as requests
from stateplay_rl.judges.protocol import JudgingProtocol, shuffled_order
from stateplay_rl.stores.atomic import sha256_bytes
from stateplay_rl.stores.groups import StoredGroup


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
