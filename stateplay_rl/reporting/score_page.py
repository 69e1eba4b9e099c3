"""The pages of a groups directory and of a scores directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from stateplay_rl.errors import InputError
from stateplay_rl.reporting.blocks import (
    BarChart,
    BarSeries,
    Block,
    Card,
    ChartGrid,
    Column,
    Gallery,
    Headline,
    Prose,
    Section,
    SourcePage,
    Stat,
    StatRow,
    Table,
)
from stateplay_rl.reporting.cards import CandidateScore, GroupSet, browser_note, group_cards
from stateplay_rl.reporting.context import ReportContext
from stateplay_rl.reporting.judge_tables import agreement_section, cost_section
from stateplay_rl.reporting.lineage import lineage_of
from stateplay_rl.reporting.numbers import compact, deviation, histogram, mean, plural, points, share
from stateplay_rl.reporting.score_files import group_stores, read_scores
from stateplay_rl.reporting.sources import LABELS, Source
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.manifest import Manifest, find_input, read_manifest

Scores = Mapping[str, Sequence[CandidateScore]]
BOTH_KINDS = (50.0, 50.0)
SCORES_SOURCE = "scores.parquet: score"


def groups_page(source: Source, context: ReportContext) -> SourcePage:
    """The report on a groups directory; scores are added when a scores directory of it was given too."""
    scores = _scores_for(source, context)
    group_set = GroupSet(GroupStore(source.path), scores, source.name)
    cards = group_cards([group_set], context.media, context.embedded_groups)
    classes = Counter(card.mechanics_class for card in cards)
    with_clip = sum(1 for card in cards if card.videos[0].media or card.videos[0].href)
    candidates = sum(len(card.videos) - 1 for card in cards)
    sentences = (
        f"{plural(len(cards), 'group')} with {plural(candidates, 'candidate')}.",
        f"{with_clip:,} have a real clip.",
        "Scores are shown beside them." if scores else "No scores of these groups were given.",
    )
    blocks: tuple[Block, ...] = (_class_chart(classes, f"{layout.GROUP}: mechanics_class"),)
    return SourcePage(
        source.key,
        LABELS["groups"],
        source.name,
        Headline(plural(len(cards), "group"), "neutral", sentences),
        (),
        (
            Section("classes", "By class", blocks),
            Section("groups", "Group browser", (_browser(cards, source.name, bool(scores)),)),
        ),
        lineage_of(source, context.out, search=context.places),
    )


def scores_page(source: Source, context: ReportContext) -> SourcePage:
    """The report on a scores directory; videos are shown when its groups can be found."""
    files = read_scores(source.path)
    scores = files.scores
    place = _groups_place(source, context)
    cards: tuple[Card, ...] = ()
    if place is not None:
        sets = [
            GroupSet(store, scores, (Path(place.name) / store.root.relative_to(place)).as_posix())
            for store in group_stores(place)
        ]
        cards = group_cards(sets, context.media, context.embedded_groups, only=scores)
    classes = {card.title: card.mechanics_class for card in cards} | dict(files.classes)
    browser: Block = (
        _browser(cards, place.name, True)
        if place is not None and cards
        else Prose(
            "The groups of these scores were not found: give their directory too, to see the videos.",
            "caution",
        )
    )
    more = (cost_section(source), agreement_section(source, files, context))
    return SourcePage(
        source.key,
        LABELS["scores"],
        source.name,
        _headline(scores),
        (),
        (
            Section("scores", "Scores", _score_blocks(scores)),
            Section("tables", "By class and position", _tables(scores, classes)),
            *(section for section in more if section is not None),
            Section("groups", "Group browser", (browser,)),
        ),
        lineage_of(source, context.out, search=context.places),
    )


def _scores_for(groups: Source, context: ReportContext) -> Scores:
    """Scores among the given directories that were made from these groups."""
    for place in context.others("scores"):
        manifest = read_manifest(place, schema="scores")
        if _made_from(manifest, groups):
            return read_scores(place).scores
    return {}


def _made_from(scores: Manifest, groups: Source) -> bool:
    wanted = groups.manifest.sha256 if groups.manifest is not None else None
    return any(ref.sha256 == wanted and wanted is not None for ref in scores.inputs.values())


def _groups_place(source: Source, context: ReportContext) -> Path | None:
    """Where the groups of a scores directory lie now; None when they cannot be found."""
    if source.manifest is None or "groups" not in source.manifest.inputs:
        return None
    try:
        place = find_input(source.manifest, "groups", context.others("groups"))
    except InputError:  # the page says so in the place of the videos
        return None
    return place


def _browser(cards: tuple[Card, ...], place: str, scored: bool) -> Block:
    if not cards:
        return Prose("No group is finished.", "caution")
    inside = sum(1 for card in cards if any(video.media for video in card.videos))
    return Gallery(
        "groups",
        "",
        cards,
        f"{place}/*/{layout.GROUP}" + (f", {layout.SCORES}" if scored else ""),
        filters=True,
        note=browser_note(len(cards), inside),
    )


def _present(outcomes: Sequence[CandidateScore]) -> list[float]:
    return [outcome.score for outcome in outcomes if outcome.score is not None]


def _complete(scores: Scores) -> dict[str, list[float]]:
    """Scores of the groups whose every candidate has one."""
    return {
        group_id: _present(outcomes)
        for group_id, outcomes in scores.items()
        if outcomes and all(outcome.score is not None for outcome in outcomes)
    }


def _headline(scores: Scores) -> Headline:
    values = [value for outcomes in scores.values() for value in _present(outcomes)]
    complete = _complete(scores)
    missing = len(scores) - len(complete)
    if not values:
        text = f"None of {plural(len(scores), 'group')} has a score; the reasons are below."
        return Headline("No scores", "bad" if scores else "neutral", (text,))
    spread = mean(deviation(group) for group in complete.values())
    low, high = BOTH_KINDS
    both = sum(1 for group in complete.values() if min(group) < low and max(group) >= high)
    sentences = [
        f"{plural(len(values), 'candidate')} in {plural(len(complete), 'fully judged group')}: mean "
        f"{points(mean(values))}, deviation within groups {points(spread)} points.",
        f"{share(both / len(complete)) if complete else '0 %'} of the groups hold both a candidate below 50 "
        "and one of 50 or more: these are the groups that can teach.",
    ]
    if missing:
        sentences.append(f"{plural(missing, 'group')} without a full judgement: counted apart, never as 0.")
    return Headline(f"Mean score {points(mean(values))}", "caution" if missing else "neutral", tuple(sentences))


def _score_blocks(scores: Scores) -> tuple[Block, ...]:
    values = [value for outcomes in scores.values() for value in _present(outcomes)]
    complete = _complete(scores)
    spreads = [value for value in (deviation(group) for group in complete.values()) if value is not None]
    tied = sum(1 for group in complete.values() if max(group) == min(group))
    ends = sum(1 for value in values if value in (0.0, 100.0))
    stats = (
        Stat("mean score", points(mean(values)), SCORES_SOURCE),
        Stat("within groups", points(mean(spreads)), f"{SCORES_SOURCE}, mean of the groups' deviations"),
        Stat("deviation of all", points(deviation(values)), SCORES_SOURCE),
        Stat("tied groups", compact(tied), f"{SCORES_SOURCE}, groups whose scores are all equal"),
        Stat("at 0 or 100", share(ends / len(values)) if values else "–", SCORES_SOURCE),
        Stat("not judged", compact(len(scores) - len(complete)), "scores.parquet: status, reason"),
    )
    score_edges = [float(edge) for edge in range(0, 101, 5)]
    spread_edges = [float(edge) for edge in range(0, 51, 5)]
    charts = (
        _histogram("distribution", "Scores", "score", "candidates", values, score_edges),
        _histogram("spread", "Deviation within the group", "points", "groups", spreads, spread_edges),
    )
    return StatRow(stats), ChartGrid(charts)


def _histogram(
    key: str, title: str, x_label: str, y_label: str, values: Sequence[float], edges: Sequence[float]
) -> BarChart:
    counts = histogram(values, edges)
    return BarChart(
        key,
        title,
        f"{x_label}, lower end of each bin of {compact(edges[1] - edges[0])}",
        y_label,
        tuple(compact(edge) for edge in edges[:-1]),
        (BarSeries(y_label, tuple(float(count) for count in counts), 0),),
        SCORES_SOURCE,
    )


def _class_chart(classes: Counter[str], source: str) -> ChartGrid:
    names = tuple(sorted(classes))
    series = (BarSeries("groups", tuple(float(classes[name]) for name in names), 0),)
    return ChartGrid((BarChart("classes", "Groups by class", "class", "groups", names, series, source),))


def _tables(scores: Scores, classes: Mapping[str, str]) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if classes:
        blocks.append(_class_table(_complete(scores), classes))
    width = max((len(outcomes) for outcomes in scores.values()), default=0)
    by_position = [
        (f"candidate {k}", *_summary([o[k].score for o in scores.values() if k < len(o)])) for k in range(width)
    ]
    columns = (
        Column("position"),
        Column("scored", True),
        Column("mean", True, 1),
        Column("deviation", True, 1),
    )
    note = "A judge without position bias gives all positions alike means."
    blocks.append(Table("positions", "By position", columns, tuple(by_position), SCORES_SOURCE, note))
    reasons = Counter(
        outcome.reason or "no reason recorded"
        for outcomes in scores.values()
        for outcome in outcomes
        if outcome.score is None
    )
    if reasons:
        rows = tuple((reason, number) for reason, number in sorted(reasons.items(), key=lambda x: (-x[1], x[0])))
        reason_columns = (Column("reason"), Column("candidates", True))
        blocks.append(
            Table("missing", "Missing scores by reason", reason_columns, rows, "scores.parquet: status, reason")
        )
    return tuple(blocks)


def _summary(values: Sequence[float | None]) -> tuple[int, float | None, float | None]:
    present = [value for value in values if value is not None]
    return len(present), mean(present), deviation(present)


def _class_table(complete: Mapping[str, Sequence[float]], classes: Mapping[str, str]) -> Table:
    by_class: dict[str, list[Sequence[float]]] = {}
    for group_id, values in complete.items():
        by_class.setdefault(classes.get(group_id, "unknown"), []).append(values)
    rows = []
    for name, groups in sorted(by_class.items()):
        values = [value for group in groups for value in group]
        within = mean(deviation(group) for group in groups)
        both = sum(1 for group in groups if min(group) < BOTH_KINDS[0] and max(group) >= BOTH_KINDS[1])
        rows.append((name, len(groups), mean(values), deviation(values), within, 100 * both / len(groups)))
    columns = (
        Column("class"),
        Column("groups", True),
        Column("mean", True, 1),
        Column("deviation", True, 1),
        Column("within groups", True, 1),
        Column("% with both kinds", True, 0),
    )
    return Table("classes", "By class", columns, tuple(rows), f"{SCORES_SOURCE}; group.json: mechanics_class")
