"""Groups as cards: the reference and the candidates side by side, with scores and buttons."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from stateplay_rl.reporting.actions import encode_actions
from stateplay_rl.reporting.blocks import Card, Role, Video
from stateplay_rl.reporting.media import MediaTable
from stateplay_rl.reporting.numbers import compact, plural
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore, StoredGroup


@dataclass(frozen=True)
class CandidateScore:
    """A candidate's score, or the reason why there is none, and what the judge said about it."""

    score: float | None
    reason: str | None = None
    details: tuple[tuple[str, str], ...] = ()


CARD_BYTES = 2500
"""Text of one card inside the page: what 10,000 of them need is not left to videos."""
NOT_JUDGED = CandidateScore(None, "not judged")
GroupScoreMap = Mapping[str, Sequence[CandidateScore]]


@dataclass(frozen=True)
class GroupSet:
    """A store of groups with the scores that belong to it.

    Attributes:
        place: where the store lies, for people.
        missing: shown for a candidate that `scores` does not hold.
    """

    store: GroupStore
    scores: GroupScoreMap
    place: str
    missing: CandidateScore = NOT_JUDGED


def flat_details(details: object, prefix: str = "") -> tuple[tuple[str, str], ...]:
    """Nested judge details as ``(name, text)`` pairs, lists written out."""
    if isinstance(details, Mapping):
        return tuple(
            pair
            for key, value in details.items()
            for pair in flat_details(value, f"{prefix}.{key}" if prefix else str(key))
        )
    if isinstance(details, list | tuple):
        return ((prefix, ", ".join(_plain(value) for value in details)),)
    return ((prefix, _plain(details)),)


def _plain(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return compact(float(value)) if isinstance(value, int | float) else str(value)


def spread_choice(groups: Sequence[StoredGroup], count: int) -> list[int]:
    """`count` positions: classes in turn, and evenly over the batches within a class."""
    by_class: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        by_class.setdefault(group.record.mechanics_class, []).append(index)
    queues = []
    for _, members in sorted(by_class.items()):
        wanted = min(count, len(members))
        queues.append([members[(2 * i + 1) * len(members) // (2 * wanted)] for i in range(wanted)])
    chosen: list[int] = []
    for turn in range(count):
        for queue in queues:
            if turn < len(queue) and len(chosen) < count:
                chosen.append(queue[turn])
    return sorted(chosen)


def group_video(
    group: StoredGroup,
    role: Role,
    label: str,
    media: MediaTable,
    embed: bool,
    candidate: int | None = None,
    outcome: CandidateScore | None = None,
) -> Video:
    """One video of a group: embedded when asked and when it fits, linked otherwise.

    Args:
        candidate: its number, None for the reference.
        outcome: a candidate's score; the reference has none.
    """
    path = group.reference_video() if candidate is None else group.candidate_video(candidate)
    reason = "this condition has no real clip" if path is None else None
    if outcome is not None and outcome.score is None:
        reason = outcome.reason or "no score, no reason recorded"
    key = media.embed(path, group.files.get(path.name)) if path is not None and embed else None
    href = media.link(path) if path is not None and key is None else None
    score = outcome.score if outcome is not None else None
    return Video(label, role, score, reason, key, href, outcome.details if outcome is not None else ())


def group_card(
    group: StoredGroup, owner: GroupSet, media: MediaTable, embed: bool, alarms: tuple[str, ...] = ()
) -> Card:
    """The card of one finished group.

    Args:
        owner: the set that holds it, with its scores.
        embed: put the videos into the page as far as the budget goes.
        alarms: names of the alarms of its batch.
    """
    record = group.record
    outcomes = owner.scores.get(record.group_id, ())
    videos = [group_video(group, "reference", "real clip", media, embed)]
    for k in range(len(record.seeds)):
        outcome = outcomes[k] if k < len(outcomes) else owner.missing
        videos.append(group_video(group, "candidate", f"candidate {k}", media, embed, k, outcome))
    picture, small = media.picture(group.first_frame_path()) if embed else (None, True)
    return Card(
        title=record.group_id,
        mechanics_class=record.mechanics_class,
        batch=record.batch,
        videos=tuple(videos),
        prompt=record.prompt,
        actions=encode_actions(record.buttons),
        fps=record.fps,
        frames=record.frames,
        pixelated=small,
        source=f"{owner.place}/{record.group_id}/group.json",
        first_frame=picture,
        facts=(
            ("condition", record.condition_id),
            ("policy", record.policy_sha256),
            ("sampler", f"{record.sampler}, {record.sampling_steps} steps"),
            ("seeds", ", ".join(str(seed) for seed in record.seeds)),
        ),
        alarms=alarms,
        files=((layout.GROUP, group.sha256), *sorted(group.files.items())),
    )


def browser_note(groups: int, inside: int) -> str:
    """What stands above a group browser."""
    return (
        f"{plural(groups, 'group')}; the videos of {inside} are inside this file, the others are linked "
        "and play while the report stays beside its directories."
    )


def group_cards(
    sets: Sequence[GroupSet],
    media: MediaTable,
    embedded: int,
    only: Container[str] | None = None,
    alarms: Mapping[int, tuple[str, ...]] | None = None,
) -> tuple[Card, ...]:
    """Cards of finished groups by batch and id; the videos of at most `embedded` of them are read.

    Args:
        only: group ids to keep, None for all.
        alarms: names of alarms by batch.
    """
    found: list[tuple[StoredGroup, GroupSet]] = [
        (group_set.store.read(group_id), group_set)
        for group_set in sets
        for group_id in group_set.store.finished()
        if only is None or group_id in only
    ]
    found.sort(key=lambda pair: (pair[0].record.batch, pair[0].record.group_id))
    media.spend(CARD_BYTES * len(found))
    chosen = set(spread_choice([group for group, _ in found], embedded))
    return tuple(
        group_card(group, owner, media, index in chosen, (alarms or {}).get(group.record.batch, ()))
        for index, (group, owner) in enumerate(found)
    )
