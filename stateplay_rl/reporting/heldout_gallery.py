"""Before and after: the same held-out conditions with the same seeds, two policies side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stateplay_rl.reporting.actions import encode_actions
from stateplay_rl.reporting.blocks import Card, Gallery, Role, Video
from stateplay_rl.reporting.cards import NOT_JUDGED, CandidateScore, group_video
from stateplay_rl.reporting.context import ReportContext
from stateplay_rl.reporting.media import MediaTable
from stateplay_rl.reporting.numbers import change, plural, points
from stateplay_rl.reporting.run_data import Evaluation, Gain
from stateplay_rl.reporting.run_files import heldout_groups
from stateplay_rl.reporting.score_files import candidate_details, read_verdicts
from stateplay_rl.reporting.sources import Source
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import StoredGroup


def ranked_choice(gain: Gain, count: int) -> list[tuple[int, str]]:
    """Rank (1 = largest rise) and condition, evenly from the largest rise to the largest fall.

    A fixed rule, so that nobody picks the pretty ones.
    """
    order = sorted(gain.differences, key=lambda condition: (-gain.differences[condition], condition))
    wanted = min(count, len(order))
    if wanted < 2:
        return [(1, condition) for condition in order[:wanted]]
    ranks = [round(i * (len(order) - 1) / (wanted - 1)) for i in range(wanted)]
    return [(rank + 1, order[rank]) for rank in ranks]


@dataclass(frozen=True)
class _Sides:
    """What all cards of a gallery share. `embedded`: how many conditions have their videos in the page."""

    gain: Gain
    samples: int
    media: MediaTable
    embedded: int
    verdicts: Mapping[str, Mapping[str, Any]]


def embedded_conditions(gain: Gain | None, context: ReportContext) -> int:
    """Conditions of the gallery whose videos lie in the page: each counts as one embedded group."""
    shown = min(context.config.gallery_conditions, len(gain.differences)) if gain is not None else 0
    return min(shown, context.embedded_groups)


def heldout_gallery(source: Source, gain: Gain, context: ReportContext) -> Gallery | None:
    """The gallery, None when the evaluations' videos were not kept."""
    config = context.config
    folders = (source.path / gain.before.groups, source.path / gain.after.groups)
    verdicts = read_verdicts(folders[0]) | read_verdicts(folders[1])
    embedded = embedded_conditions(gain, context)
    sides = _Sides(gain, config.gallery_samples, context.media, embedded, verdicts)
    before, after = heldout_groups(source, gain.before), heldout_groups(source, gain.after)
    cards: list[Card] = []
    for rank, condition in ranked_choice(gain, config.gallery_conditions):
        if condition in before and condition in after:
            pair = (before[condition], after[condition])
            cards.append(_card(condition, rank, pair, sides, embed=len(cards) < sides.embedded))
    if not cards:
        return None
    start = f"After {plural(gain.before.batch, 'batch', 'batches')}"
    total = plural(len(gain.differences), "condition")
    return Gallery(
        "before-after",
        "",
        tuple(cards),
        f"{layout.HELDOUT}: scores; {gain.before.groups}, {gain.after.groups}",
        filters=False,
        page_size=3,
        note=f"{start} beside after {gain.after.batch}: held-out "
        "conditions, the same seeds on both sides, chosen by rule: evenly from the largest "
        f"rise to the largest fall among {total}.",
    )


def _card(condition: str, rank: int, pair: tuple[StoredGroup, StoredGroup], sides: _Sides, *, embed: bool) -> Card:
    old, new = pair
    gain = sides.gain
    videos = [group_video(old, "reference", "real clip", sides.media, embed)]
    videos += _side(old, gain.before, "before", sides, embed)
    videos += _side(new, gain.after, "after", sides, embed)
    picture, small = sides.media.picture(old.first_frame_path())
    record = old.record
    return Card(
        title=condition,
        mechanics_class=record.mechanics_class,
        batch=None,
        videos=tuple(videos),
        prompt=record.prompt,
        actions=encode_actions(record.buttons),
        fps=record.fps,
        frames=record.frames,
        pixelated=small,
        source=f"{gain.before.groups}/{record.group_id}, {gain.after.groups}/{new.record.group_id}",
        first_frame=picture,
        note=f"{change(gain.differences[condition])} points, rank {rank} of {len(gain.differences)}",
        facts=(
            ("policy before", f"{gain.before.policy}, {record.policy_sha256}"),
            ("policy after", f"{gain.after.policy}, {new.record.policy_sha256}"),
            ("seeds", ", ".join(str(seed) for seed in record.seeds[: sides.samples])),
            ("mean before", points(gain.before.condition_means().get(condition))),
            ("mean after", points(gain.after.condition_means().get(condition))),
        ),
        files=tuple(
            (f"{role}/{name}", sha256)
            for role, group in (("before", old), ("after", new))
            for name, sha256 in ((layout.GROUP, group.sha256), *sorted(group.files.items()))
        ),
    )


def _side(group: StoredGroup, evaluation: Evaluation, role: Role, sides: _Sides, embed: bool) -> list[Video]:
    scores = evaluation.scores.get(group.record.condition_id, ())
    line = sides.verdicts.get(group.record.group_id, {})
    videos = []
    for k in range(min(sides.samples, len(group.record.seeds))):
        outcome = NOT_JUDGED
        if k < len(scores):
            reason = None if scores[k] is not None else "this sample has no score"
            outcome = CandidateScore(scores[k], reason, candidate_details(line, k))
        videos.append(group_video(group, role, f"{role} {k + 1}", sides.media, embed, k, outcome))
    return videos
