"""The page of a conditions directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from stateplay_rl.reporting.blocks import (
    BarChart,
    BarSeries,
    Block,
    ChartGrid,
    Column,
    Frame,
    FrameGrid,
    Headline,
    Section,
    SourcePage,
    Stat,
    StatRow,
    Table,
    Tone,
)
from stateplay_rl.reporting.context import ReportContext
from stateplay_rl.reporting.lineage import lineage_of
from stateplay_rl.reporting.numbers import compact, plural
from stateplay_rl.reporting.referee_section import hud_check_section
from stateplay_rl.reporting.sources import LABELS, Source
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionRecord, ConditionStore, RejectedRow, read_rejected

CONDITIONS_SOURCE = "conditions.parquet"


def conditions_page(source: Source, context: ReportContext) -> SourcePage:
    """Counts, rejections, warnings, class mix and a grid of first frames."""
    store = ConditionStore.open(source.path)
    records, rejected = store.records, read_rejected(source.path)
    heldout = sum(1 for record in records if record.pool == "heldout")
    clips = sum(1 for record in records if record.clip is not None)
    warned = sum(1 for record in records if record.warnings)
    sentences = [
        f"{plural(len(records), 'condition')} eligible, {plural(len(rejected), 'row')} rejected.",
        f"{len(records) - heldout:,} may be trained on, {heldout:,} are held out.",
        f"{clips:,} have a real clip." if clips else "None has a real clip.",
    ]
    if warned:
        sentences.append(f"Conditions with a warning: {warned:,}.")
    clusters = len({record.cluster_id for record in records})
    stats = StatRow(
        (
            Stat("eligible", compact(len(records)), CONDITIONS_SOURCE),
            Stat("rejected", compact(len(rejected)), "rejected.parquet"),
            Stat("held out", compact(heldout), f"{CONDITIONS_SOURCE}: pool"),
            Stat("with a real clip", compact(clips), f"{CONDITIONS_SOURCE}: clip"),
            Stat("clusters", compact(clusters), f"{CONDITIONS_SOURCE}: cluster_id"),
            Stat("warned", compact(warned), f"{CONDITIONS_SOURCE}: warnings"),
        )
    )
    blocks: tuple[Block, ...] = (stats, ChartGrid(_charts(records)))
    sections = [
        Section("counts", "Counts", blocks),
        Section("oddities", "Rejections and warnings", _oddities(records, rejected)),
        *((check,) if (check := hud_check_section(source)) is not None else ()),
        Section("frames", "First frames", (_frames(records, source, context),)),
    ]
    tone: Tone = "bad" if not records else "caution" if rejected else "neutral"
    headline = Headline(plural(len(records), "eligible condition"), tone, tuple(sentences))
    lineage = lineage_of(source, context.out, search=context.places)
    return SourcePage(source.key, LABELS["conditions"], source.name, headline, (), tuple(sections), lineage)


def _charts(records: Sequence[ConditionRecord]) -> tuple[BarChart, ...]:
    return (
        _pool_chart(records, "classes", "Mechanics classes", "mechanics_class"),
        _pool_chart(records, "npc", "Opponent strategies", "npc_category"),
        _pool_chart(records, "frames", "Frames used", "frames"),
        _pool_chart(records, "splits", "Student splits", "student_split"),
    )


def _pool_chart(records: Sequence[ConditionRecord], key: str, title: str, field: str) -> BarChart:
    """Conditions by one column, training pool and held-out stacked."""
    values = {record.condition_id: getattr(record, field) for record in records}
    names = sorted(set(values.values()))
    series = []
    for colour, (pool, label) in enumerate((("pass", "training"), ("heldout", "held out"))):
        counts = Counter(values[record.condition_id] for record in records if record.pool == pool)
        series.append(BarSeries(label, tuple(float(counts[name]) for name in names), colour))
    labels = tuple(str(name) or "(none)" for name in names)
    source = f"{CONDITIONS_SOURCE}: {field}, pool"
    return BarChart(key, title, field.replace("_", " "), "conditions", labels, tuple(series), source, stacked=True)


def _counted(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(names).items(), key=lambda pair: (-pair[1], pair[0])))


def _oddities(records: Sequence[ConditionRecord], rejected: Sequence[RejectedRow]) -> tuple[Block, ...]:
    codes = _counted(row.reason for row in rejected)
    warnings = _counted(warning.partition(":")[0] for record in records for warning in record.warnings)
    blocks: list[Block] = [
        Table(
            "rejects",
            "Rejected rows by code",
            (Column("code"), Column("rows", True)),
            codes,
            "rejected.parquet",
        ),
        Table(
            "warnings",
            "Warnings",
            (Column("warning"), Column("conditions", True)),
            warnings,
            f"{CONDITIONS_SOURCE}: warnings",
        ),
    ]
    if rejected:
        columns = (Column("row", True, 0), Column("path", mono=True), Column("code"), Column("detail"))
        rows = tuple((row.row, row.path, row.reason, row.detail) for row in rejected)
        blocks.append(Table("rejected", "Every rejected row", columns, rows, "rejected.parquet", shown=20))
    return tuple(blocks)


def _frames(records: Sequence[ConditionRecord], source: Source, context: ReportContext) -> FrameGrid:
    """First frames by order: the permutation mixes the classes, so a prefix shows all of them."""
    frames = []
    for record in records[: context.config.frame_grid]:
        image, small = context.media.picture(source.path / layout.frame_file(record.condition_id))
        detail = f"{record.mechanics_class}, {record.pool}"
        frames.append(Frame(image, record.condition_id[:16], detail, small))
    title = f"The first {len(frames)} by order" if frames else "No frames"
    return FrameGrid(title, tuple(frames), f"{layout.FRAMES_FOLDER}/<condition_id>.png")
