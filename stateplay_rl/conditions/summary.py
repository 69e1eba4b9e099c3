"""`summary.json`: what was found, what was turned away and why, and how far the split can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stateplay_rl.conditions.assemble import Assembled
from stateplay_rl.conditions.codes import REJECT_CODES, WARNING_CODES, warning_code
from stateplay_rl.conditions.source import Source
from stateplay_rl.config.conditions import ConditionsConfig
from stateplay_rl.evaluation.data_check import summarise_checks
from stateplay_rl.stores.conditions import ConditionRecord

_INFERRED = (
    "Episode evidence is inferred: the source names no episodes. Clips were joined where their first frames "
    "look alike and their initial states are adjacent or their buttons near-equal. Two clips of one episode "
    "may still lie in different clusters, and two clips of one cluster may come from different episodes."
)
_GIVEN = "Episode evidence was given by the index named in the manifest; nothing was inferred."


@dataclass(frozen=True)
class ConditionsSummary:
    """Counts of one build, for the summary file and the command's output. Plain JSON values throughout."""

    preset: str
    rows_in_source: int
    rows_examined: int
    eligible: int
    rejected: int
    rejected_by_code: dict[str, dict[str, Any]]
    warnings_by_code: dict[str, dict[str, Any]]
    by_class: dict[str, dict[str, int]]
    by_npc_category: dict[str, int]
    without_video: int
    lengths: dict[str, int]
    picture_sizes: dict[str, int]
    clusters: dict[str, Any]
    pool: dict[str, int]
    student_split: dict[str, int]
    stage_a: int
    stage_c: int
    hud_check: dict[str, Any] | None
    ignored_columns: list[str]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Plain values in the order of the file."""
        return asdict(self)


def summarise(
    source: Source, examined_rows: int, built: Assembled, config: ConditionsConfig, hud_game: str | None = None
) -> ConditionsSummary:
    """Count everything that a reader of the directory should know; `hud_game` names the HUD that was read, if any."""
    records = built.records
    pool = Counter(record.pool for record in records)
    stage_a = min(config.split.stage_a_conditions, pool["pass"])
    return ConditionsSummary(
        preset=config.preset,
        rows_in_source=len(source.rows),
        rows_examined=examined_rows,
        eligible=len(records),
        rejected=len(built.rejected),
        rejected_by_code=_rejections(built),
        warnings_by_code=_warnings(records),
        by_class=_by_class(records),
        by_npc_category=dict(sorted(Counter(record.npc_category for record in records).items())),
        without_video=sum(record.clip is None for record in records),
        lengths=_lengths(built),
        picture_sizes=_picture_sizes(built),
        clusters=_clusters(built, config),
        pool={"pass": pool["pass"], "heldout": pool["heldout"]},
        student_split=dict(sorted(Counter(r.student_split for r in records if r.pool == "pass").items())),
        stage_a=stage_a,
        stage_c=pool["pass"] - stage_a,
        hud_check=_hud_check(built, hud_game),
        ignored_columns=list(source.ignored_columns),
        notes=_notes(source, examined_rows, pool["heldout"], built, config),
    )


def _hud_check(built: Assembled, game: str | None) -> dict[str, Any] | None:
    """First frames against state columns; None when no HUD was read."""
    if game is None:
        return None
    return summarise_checks({found.condition_id: found.hud for found in built.examined}, game)


def _rejections(built: Assembled) -> dict[str, dict[str, Any]]:
    counts = Counter(row.reason for row in built.rejected)
    return {code: {"rows": count, "meaning": REJECT_CODES[code]} for code, count in sorted(counts.items())}


def _warnings(records: Sequence[ConditionRecord]) -> dict[str, dict[str, Any]]:
    conditions: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for record in records:
        for stored in record.warnings:
            code = warning_code(stored)
            conditions[code] += 1
            total[code] += int(stored.partition(":")[2] or 1)
    return {
        code: {"conditions": conditions[code], "count": total[code], "meaning": WARNING_CODES[code]}
        for code in sorted(conditions)
    }


def _by_class(records: Sequence[ConditionRecord]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for record in sorted(records, key=lambda record: record.mechanics_class):
        counts = table.setdefault(
            record.mechanics_class,
            {"eligible": 0, "pass": 0, "heldout": 0, "train": 0, "validation": 0, "test": 0},
        )
        counts["eligible"] += 1
        counts[record.pool] += 1
        if record.pool == "pass":
            counts[record.student_split] += 1
    return table


def _lengths(built: Assembled) -> dict[str, int]:
    names = (f"{e.source_frames} frames -> {e.frames} used, {e.latent_frames} slots" for e in built.examined)
    return dict(sorted(Counter(names).items()))


def _picture_sizes(built: Assembled) -> dict[str, int]:
    return dict(sorted(Counter(f"{e.source_size[0]}x{e.source_size[1]}" for e in built.examined).items()))


def _clusters(built: Assembled, config: ConditionsConfig) -> dict[str, Any]:
    clustering = built.clustering
    sizes = Counter(clustering.sizes().tolist())
    level = clustering.level
    return {
        "evidence": "given" if built.episodes_given else "inferred",
        "statement": _GIVEN if built.episodes_given else _INFERRED,
        "count": sum(sizes.values()),
        "largest": max(sizes),
        "largest_allowed": clustering.limit,
        "clusters_by_size": {str(size): sizes[size] for size in sorted(sizes)},
        "level": level,
        "tightened": bool(level),
        "largest_by_level": list(clustering.largest_by_level),
        "thresholds": None if level is None else config.clusters.levels[level].model_dump(mode="json"),
    }


def _notes(source: Source, examined_rows: int, heldout: int, built: Assembled, config: ConditionsConfig) -> list[str]:
    notes = []
    checked = sum(bool(found.hud) for found in built.examined)
    wrong = sum(any(check.agrees is False for check in found.hud) for found in built.examined)
    if wrong:
        notes.append(
            f"{wrong} of {checked} first frames show another HP, meter or clock than their state columns say: is the "
            "HUD profile the right one, and do the state columns belong to these clips?"
        )
    left_out = len(source.rows) - examined_rows
    if left_out:
        notes.append(f"{left_out} rows were not examined: --limit, --classes or --sample-per-class left them out")
    if heldout < config.split.heldout:
        share = config.split.heldout_largest_share
        notes.append(
            f"{heldout} conditions are held out, not {config.split.heldout}: whole clusters only, at "
            f"most {share:.0%} of all conditions"
        )
    clustering = built.clustering
    if clustering.level:
        sizes = ", ".join(map(str, clustering.largest_by_level))
        notes.append(f"cluster thresholds were tightened {clustering.level} times; largest cluster: {sizes}")
    if built.episodes_given and clustering.largest_by_level[0] > clustering.limit:
        notes.append(f"the largest episode has {clustering.largest_by_level[0]} of {len(built.records)} conditions")
    if source.ignored_columns:
        notes.append(f"columns that nobody reads: {', '.join(source.ignored_columns)}")
    return notes
