"""Reading a run directory, sealed or open: its logs, its groups with their scores, its held-out videos."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stateplay_rl.errors import InputError
from stateplay_rl.reporting.cards import CandidateScore, GroupSet
from stateplay_rl.reporting.run_data import Evaluation, Record, RunData
from stateplay_rl.reporting.score_files import logged_scores, read_scores
from stateplay_rl.reporting.sources import Source
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from stateplay_rl.stores.jsonl import read_lines
from stateplay_rl.stores.manifest import find_input
from stateplay_rl.stores.unfinished import read_unfinished

OPEN_SEGMENT = "the segment is still open and its scores are not stored yet"


def read_run(source: Source) -> RunData:
    """The run's logs. A last line that is being written right now is left out of an open run.

    Raises:
        CorruptionError: a damaged line, named by file and number.
    """
    logs = {name: _log(source, name) for name in (layout.METRICS, layout.HELDOUT, layout.TIMINGS, layout.ALARMS)}
    return RunData(
        config=source.config,
        metrics=logs[layout.METRICS],
        evaluations=tuple(Evaluation.from_record(record) for record in logs[layout.HELDOUT]),
        timings=logs[layout.TIMINGS],
        alarms=logs[layout.ALARMS],
        clusters=_clusters(source),
    )


def _log(source: Source, name: str) -> tuple[Record, ...]:
    file = source.path / name
    if not file.is_file():
        return ()
    return tuple(read_lines(file, allow_open_end=not source.finished))


def _clusters(source: Source) -> Mapping[str, int]:
    """Cluster of each condition, when the run's conditions can still be found; else none is known."""
    place = _conditions_place(source)
    if place is None:
        return {}
    return {record.condition_id: record.cluster_id for record in ConditionStore.open(place).records}


def _conditions_place(source: Source) -> Path | None:
    """The run's conditions directory, None when it is not where the run recorded it (a moved tree)."""
    if source.manifest is None:
        ref = read_unfinished(source.path).inputs.get("conditions")
        place = Path(os.path.normpath(source.path / ref.path)) if ref is not None else None
        return place if place is not None and (place / layout.MANIFEST).is_file() else None
    if "conditions" not in source.manifest.inputs:
        return None
    try:
        return find_input(source.manifest, "conditions")
    except InputError:  # the page then says that its intervals are over conditions, not clusters
        return None


def run_groups(source: Source) -> tuple[GroupSet, ...]:
    """The training groups of every segment with their scores."""
    sets = []
    for segment in sorted((source.path / layout.SEGMENTS_FOLDER).glob("*/")):
        store = GroupStore(segment / layout.GROUPS_FOLDER)
        place = f"{layout.SEGMENTS_FOLDER}/{segment.name}/{layout.GROUPS_FOLDER}"
        if (segment / layout.SCORES).is_file():
            sets.append(GroupSet(store, read_scores(segment).scores, place))
        else:
            sets.append(GroupSet(store, logged_scores(segment), place, CandidateScore(None, OPEN_SEGMENT)))
    return tuple(sets)


def heldout_groups(source: Source, evaluation: Evaluation) -> dict[str, StoredGroup]:
    """Groups of one evaluation by condition; empty when its videos were not kept."""
    if not evaluation.groups:
        return {}
    folder = Path(os.path.normpath(source.path / evaluation.groups))
    if source.path not in folder.parents:
        raise InputError(
            f"{source.path / layout.HELDOUT}: field 'groups' is {evaluation.groups!r}, outside of the run",
            "do not use this run",
        )
    store = GroupStore(folder)
    groups = [store.read(group_id) for group_id in store.finished()]
    return {group.record.condition_id: group for group in groups}
