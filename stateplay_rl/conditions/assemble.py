"""From outcomes of rows to records: duplicates out, clusters, pool, splits, order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stateplay_rl.conditions.clusters import Clustering, given_clusters, infer_clusters
from stateplay_rl.conditions.episodes import episode_of
from stateplay_rl.conditions.examine import Examined, Outcome
from stateplay_rl.conditions.source import SourceRow
from stateplay_rl.conditions.splits import heldout_mask, interleaved_order, student_splits
from stateplay_rl.config.conditions import ConditionsConfig
from stateplay_rl.errors import InputError
from stateplay_rl.stores.conditions import ConditionRecord, RejectedRow


@dataclass(frozen=True)
class Assembled:
    """Everything that `conditions.parquet`, `rejected.parquet` and the summary are made of.

    Args:
        records: eligible conditions, by their ids.
        examined: what was found for each of them, in the same order.
        rejected: rejected rows, by row number.
        clustering: how the clusters came about; `episodes_given` says whether from an index.
    """

    records: tuple[ConditionRecord, ...]
    examined: tuple[Examined, ...]
    rejected: tuple[RejectedRow, ...]
    clustering: Clustering
    episodes_given: bool


def assemble(
    rows: Sequence[SourceRow],
    outcomes: Mapping[int, Outcome],
    config: ConditionsConfig,
    episodes: Mapping[str, str] | None,
) -> Assembled:
    """Build the records. Depends on contents only: not on the order of outcomes, rows or workers.

    Args:
        rows: examined rows in the order of the source.
        outcomes: outcome by row number, one for each row.
        config: cluster and split rules.
        episodes: episode by clip when an index was given.

    Raises:
        InputError: no row is eligible.
        CheckError: a cluster is too large at every threshold.
    """
    eligible, rejected = _sorted_out(rows, outcomes, episodes)
    if not eligible:
        raise _nothing_eligible(rejected)
    conditions = tuple(condition for _, condition in eligible)
    sources = [row for row, _ in eligible]
    if episodes is None:
        clustering = infer_clusters([condition.evidence for condition in conditions], config.clusters)
    else:
        clustering = given_clusters([episode_of(row, episodes) or "" for row in sources], config.clusters)
    classes = [row.mechanics_class for row in sources]
    heldout_N = heldout_mask(classes, clustering.labels, config.split)
    splits = student_splits(classes, clustering.labels, heldout_N, config.split)
    order_N = interleaved_order(classes, heldout_N, config.split)
    records = tuple(
        _record(source, condition, clustering.labels[i], bool(heldout_N[i]), splits[i], int(order_N[i]))
        for i, (source, condition) in enumerate(eligible)
    )
    return Assembled(records, conditions, rejected, clustering, episodes is not None)


def _sorted_out(
    rows: Sequence[SourceRow], outcomes: Mapping[int, Outcome], episodes: Mapping[str, str] | None
) -> tuple[list[tuple[SourceRow, Examined]], tuple[RejectedRow, ...]]:
    """Eligible rows by condition id, and rejected ones by row; of equal contents the first row stays."""
    first: dict[str, SourceRow] = {}
    eligible: list[tuple[SourceRow, Examined]] = []
    rejected: list[RejectedRow] = []
    for row in rows:
        outcome = outcomes[row.row]
        condition = outcome.condition
        if condition is None:
            rejected.append(RejectedRow(row.row, row.name, outcome.code, outcome.detail))
        elif condition.condition_id in first:
            detail = f"equals row {first[condition.condition_id].row}"
            rejected.append(RejectedRow(row.row, row.name, "duplicate_content", detail))
        elif episodes is not None and episode_of(row, episodes) is None:
            rejected.append(RejectedRow(row.row, row.name, "not_in_episodes", "the index does not name it"))
        else:
            first[condition.condition_id] = row
            eligible.append((row, condition))
    eligible.sort(key=lambda pair: pair[1].condition_id)
    return eligible, tuple(rejected)


def _nothing_eligible(rejected: Sequence[RejectedRow]) -> InputError:
    counts = Counter(row.reason for row in rejected)
    codes = ", ".join(f"{code} {count}" for code, count in counts.most_common())
    first = rejected[0]
    found = f"none of {len(rejected)} rows is eligible ({codes})"
    example = f"row {first.row}, {first.path}: {first.detail}"
    return InputError(f"{found}; {example}", "check --data-root and --preset, then run again with --overwrite")


def _record(
    row: SourceRow, condition: Examined, cluster: int, heldout: bool, student_split: str, order: int
) -> ConditionRecord:
    return ConditionRecord(
        condition_id=condition.condition_id,
        clip=condition.clip,
        prompt=condition.prompt,
        mechanics_class=row.mechanics_class,
        distribution=row.distribution,
        npc_category=row.npc_category,
        strategy=row.strategy,
        fps=condition.fps,
        frames=condition.frames,
        latent_frames=condition.latent_frames,
        action_rows=condition.action_rows,
        action_bin_edges=condition.action_bin_edges,
        first_frame_sha256=condition.first_frame_sha256,
        actions_sha256=condition.actions_sha256,
        cluster_id=cluster,
        pool="heldout" if heldout else "pass",
        student_split=student_split,
        order=order,
        warnings=condition.warnings,
    )
