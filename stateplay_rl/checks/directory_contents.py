"""What a directory's own records say about its contents, re-computed; a table with a function a schema.

The walk from a number back: score -> group -> candidate latents -> policy hash -> exported weights -> audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stateplay_rl.checks import directory_runs
from stateplay_rl.checks.directory_facts import (
    GROUPS_INPUT,
    Facts,
    all_groups,
    collect,
    group_stores,
    inputs_record,
    rehash_groups,
)
from stateplay_rl.checks.directory_requests import check_requests, has_paid_judge
from stateplay_rl.checks.lines import NotChecked, require
from stateplay_rl.errors import SprlError
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.stores.foreign import parse_json
from stateplay_rl.stores.groups import StoredGroup, read_groups_parquet

REHASH_LIMIT_BYTES = 2 << 30


@dataclass(frozen=True)
class Finding:
    """A check of contents: its name and its function (see `lines.CheckFunction`)."""

    name: str
    check: Callable[[], str]


def examine(facts: Facts) -> Iterator[Finding]:
    """The checks of a directory's kind; kinds that record nothing beyond their files have none."""
    for name, function, needs in _BY_SCHEMA.get(facts.schema, ()):
        if needs is not None and not (facts.path / needs).is_file():
            yield Finding(name, partial(_absent, needs, facts.manifest is None))
        else:
            yield Finding(name, partial(function, facts))
    if has_paid_judge(facts):
        yield Finding("requests", partial(check_requests, facts))


def _absent(name: str, unfinished: bool) -> str:
    # A sealed directory that never held the file (a hand-made one) is no break: its manifest knows its files.
    raise NotChecked(f"{name} is not written yet" if unfinished else f"there is no {name}")


def children(facts: Facts) -> Sequence[Path]:
    """Nested sprl directories that are verified on their own: the segments of a run."""
    if facts.schema != "run":
        return ()
    folder = facts.path / layout.SEGMENTS_FOLDER
    return sorted(p for p in folder.glob("*") if p.is_dir() and layout.parse_segment(p.name) is not None)


def check_groups(facts: Facts) -> str:
    """Every file of every finished group, and the content hash of every candidate's latents."""
    return rehash_groups(group_stores(facts.path))


def check_group_index(facts: Facts) -> str:
    """`groups.parquet` against the groups themselves."""
    rows = {row.group_id: row for row in read_groups_parquet(facts.path / layout.GROUPS)}
    stores = {name: store for store in group_stores(facts.path) for name in store.finished()}
    problems = [f"group {name} is not in {layout.GROUPS}" for name in stores if name not in rows]
    for row in rows.values():
        if row.status != "finished":
            continue
        if row.group_id not in stores:
            problems.append(f"group {row.group_id} of {layout.GROUPS} is missing")
            continue
        group = stores[row.group_id].read(row.group_id)
        if group.sha256 != row.group_sha256:
            problems.append(f"group {row.group_id}: {layout.GROUP} is not the one that {layout.GROUPS} records")
        same = ("condition_id", "policy_sha256", "world_sha256", "seeds")
        problems += [
            f"group {row.group_id}: field {name!r} differs between {layout.GROUPS} and {layout.GROUP}"
            for name in same
            if getattr(row, name) != getattr(group.record, name)
        ]
    return collect(problems, f"{len(rows)} rows agree with the groups")


def check_conditions(facts: Facts) -> str:
    """First frames, actions and bin edges of every condition against its record."""
    from stateplay_rl.stores.conditions import ConditionStore, hash_actions
    from stateplay_rl.stores.hashing import hash_frames
    from stateplay_rl.worlds.preparation import action_bin_edges

    store = ConditionStore.open(facts.path)
    problems: list[str] = []
    for record in store.records:
        where = f"condition {record.condition_id}"
        try:
            if hash_frames(store.first_frame(record.condition_id)) != record.first_frame_sha256:
                problems.append(f"{where}: first frame is not the recorded one")
            if hash_actions(store.raw_actions(record.condition_id)) != record.actions_sha256:
                problems.append(f"{where}: actions are not the recorded ones")
        except SprlError as error:
            problems.append(error.what)
        edges = tuple(tuple(pair) for pair in record.action_bin_edges)
        if edges != action_bin_edges(record.action_rows, record.latent_frames):
            problems.append(f"{where}: field 'action_bin_edges' does not follow from its rows and slots")
    return collect(problems, f"{len(store.records)} conditions' frames, actions and bins re-computed")


def check_scores(facts: Facts) -> str:
    """Every score leads to a group with that many candidates, whose `group.json` is the one judged."""
    from stateplay_rl.stores.scores import ScoreTable

    table = ScoreTable.read(facts.path / layout.SCORES)
    # A segment holds its groups itself, but for a hand-made one, which reads them.
    own = facts.schema == "segment" and GROUPS_INPUT not in inputs_record(facts.path).inputs
    source = facts.inputs.get(GROUPS_INPUT, facts.path if own else None)
    if source is None:
        raise NotChecked(f"{len(table)} rows are well formed; their groups were not found")
    groups = {g.record.group_id: g for g in all_groups(source) if isinstance(g, StoredGroup)}
    recorded = facts.manifest.extra.get("group_sha256", {}) if facts.manifest is not None else {}
    problems: list[str] = []
    for scores in table:
        group = groups.get(scores.group_id)
        if group is None:
            problems.append(f"scored group {scores.group_id} is not in {source}")
        elif len(scores.rows) != group.record.candidates:
            problems.append(f"group {scores.group_id}: {len(scores.rows)} scores, {group.record.candidates} candidates")
        elif recorded.get(scores.group_id, group.sha256) != group.sha256:
            problems.append(f"group {scores.group_id} is not the one that was judged: {layout.GROUP} changed")
    return collect(problems, f"{len(table)} scores lead to {len(groups)} groups")


def check_audit(facts: Facts) -> str:
    """The audited weight files, where they still lie, against their recorded sizes and hashes."""
    audit = parse_json((facts.path / layout.AUDIT).read_text(encoding="utf-8"))
    files = audit["files"]
    require(bool(files), f"{layout.AUDIT} names no weight file", "audit it again: sprl audit-ckpt")
    problems, absent, unread = [], 0, 0
    for file in files:
        path = Path(file["realpath"])
        if not path.is_file():
            absent += 1
        elif path.stat().st_size != file["size"]:
            problems.append(f"{path} has {path.stat().st_size} bytes, the audit says {file['size']}")
        elif file.get("sha256") is None or file["size"] > REHASH_LIMIT_BYTES:
            unread += 1
        elif sha256_file(path) != file["sha256"]:
            problems.append(f"{path} is not the file that was audited: its sha256 differs")
    return collect(problems, f"{len(files)} weight files: {absent} not here, {unread} compared by size only")


_BY_SCHEMA: Mapping[str, Sequence[tuple[str, Callable[[Facts], str], str | None]]] = {
    "conditions": (("conditions", check_conditions, layout.MANIFEST),),
    "groups": (("groups", check_groups, None), ("index", check_group_index, layout.GROUPS)),
    "segment": (("groups", check_groups, None), ("scores", check_scores, layout.SCORES)),
    "scores": (("scores", check_scores, layout.SCORES),),
    "run": (
        ("ledger", directory_runs.check_ledger, layout.LEDGER),
        ("policies", directory_runs.check_policies, None),
        ("checkpoints", directory_runs.check_checkpoints, None),
        ("held-out groups", directory_runs.check_heldout, None),
        ("logs", directory_runs.check_logs, None),
    ),
    "audit": (("weight files", check_audit, layout.AUDIT),),
}
"""Checks of each kind: name, function, and the file without which nothing can be said."""
