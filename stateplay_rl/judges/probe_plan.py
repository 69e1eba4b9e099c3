"""What a probe shows a judge: the same group again, in other orders, and with planted candidates.

Every variant is a group of the same size, so that the request keeps its form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.video import decode_mp4, encode_mp4

Source = int | Literal["duplicate", "reference", "frozen", "backwards", "other_clip"]
VariantKind = Literal["repeat", "rotation", "reversal", "planted", "other_prompt"]
BROKEN: tuple[Source, ...] = ("frozen", "backwards", "other_clip")
Value = TypeVar("Value")
COPIED = 0
"""The candidate that is planted again as its own duplicate, and that the broken videos are made from."""


@dataclass(frozen=True)
class Variant:
    """One showing of a group.

    Args:
        sources: what stands in each place: a candidate's number, or the name of something planted.
        repeat: how often the very same showing came before.
    """

    kind: VariantKind
    sources: tuple[Source, ...]
    repeat: int = 0


@dataclass(frozen=True)
class VariantGroup(StoredGroup):
    """A group whose candidates are other files; `videos` by place."""

    videos: tuple[Path, ...] = ()

    def candidate_video(self, candidate: int) -> Path:
        """Video in a place."""
        return self.videos[self._index(candidate)]

    def verify(self) -> None:
        """The group that it was made from has been checked."""


@dataclass(frozen=True)
class ProbePlan:
    """How much of each.

    Args:
        repeats: times that the stored order is shown.
        broken: plant broken videos.
        other_prompt: show the group with the text about the opponent the other way round.
    """

    repeats: int
    broken: bool
    other_prompt: bool

    def variants(self, candidates: int, place: int, *, has_reference: bool) -> tuple[Variant, ...]:
        """All showings of one group.

        Args:
            candidates: K.
            place: where planted candidates stand; it should differ from group to group.
            has_reference: whether the real clip can be planted.
        """
        order = tuple(range(candidates))
        shown = [Variant("repeat", order, repeat) for repeat in range(self.repeats)]
        rotations = [order[shift:] + order[:shift] for shift in range(1, candidates)]
        shown += [Variant("rotation", rotated) for rotated in rotations]
        if order[::-1] not in (order, *rotations):
            shown.append(Variant("reversal", order[::-1]))
        planted: list[Source] = ["duplicate"]
        planted += ["reference"] if has_reference else []
        planted += BROKEN if self.broken else ()
        others = order[: candidates - 1]
        for name in planted:
            at = place % candidates
            shown.append(Variant("planted", (*others[:at], name, *others[at:])))
        if self.other_prompt:
            shown.append(Variant("other_prompt", order))
        return tuple(shown)


def variant_group(group: StoredGroup, variant: Variant, planted: Mapping[str, Path]) -> VariantGroup:
    """The group as one variant shows it.

    Args:
        group: the group itself.
        variant: the showing.
        planted: video of each planted name.
    """
    originals = [source if isinstance(source, int) else COPIED for source in variant.sources]
    record = replace(
        group.record,
        seeds=_pick(group.record.seeds, originals),
        latents_sha256=_pick(group.record.latents_sha256, originals),
        frames_sha256=_pick(group.record.frames_sha256, originals),
    )
    videos = tuple(
        group.candidate_video(source) if isinstance(source, int) else planted[source] for source in variant.sources
    )
    return VariantGroup(record, group.folder, group.sha256, group.files, videos)


def planted_videos(group: StoredGroup, other: StoredGroup, folder: Path) -> dict[str, Path]:
    """Make or find what is planted in a group.

    Args:
        group: the group.
        other: another group, whose video answers to other buttons.
        folder: where made videos go.
    """
    copied = group.candidate_video(COPIED)
    frames = decode_mp4(copied)
    made = {"frozen": frames[:1].repeat(len(frames), axis=0), "backwards": frames[::-1]}
    found = {"duplicate": copied}
    folder.mkdir(parents=True, exist_ok=True)
    for name, video in made.items():
        found[name] = folder / f"{name}.mp4"
        encode_mp4(found[name], video, group.record.fps)
    foreign = decode_mp4(other.candidate_video(COPIED))
    # Another length would give it away: cut, or held on its last frame.
    indices = [min(i, len(foreign) - 1) for i in range(len(frames))]
    found["other_clip"] = folder / "other_clip.mp4"
    encode_mp4(found["other_clip"], foreign[indices], group.record.fps)
    reference = group.reference_video()
    if reference is not None:
        found["reference"] = reference
    return found


def _pick(values: Sequence[Value], places: Sequence[int]) -> tuple[Value, ...]:
    return tuple(values[place] for place in places) if values else ()
