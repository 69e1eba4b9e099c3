"""Contents of a training run: ledger, policies, checkpoints, held-out groups, logs.

Its segments are directories of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.checks.directory_facts import (
    GROUPS_INPUT,
    Facts,
    all_groups,
    collect,
    inputs_record,
    rehash_groups,
)
from stateplay_rl.checks.lines import NotChecked
from stateplay_rl.errors import InputError, SprlError
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from stateplay_rl.stores.sealed import find_input


@dataclass(frozen=True)
class RunGroups:
    """Groups of a run.

    Args:
        found: its own ones and those that hand-made segments read, by id.
        not_found: hand-made segments whose groups directory is not where it was.
    """

    found: Mapping[str, StoredGroup]
    not_found: tuple[str, ...]

    @property
    def where_else(self) -> str:
        """Where groups may lie that were not found."""
        return f"the groups that {', '.join(self.not_found)} read were not found: give --search FOLDER"


def run_groups(facts: Facts) -> RunGroups:
    """Every readable finished group of a run, of its segments' inputs too: a hand-made batch stays where it was made.

    A damaged group is reported where its own directory is verified.
    """
    places = [facts.path]
    not_found = []
    for segment in sorted((facts.path / layout.SEGMENTS_FOLDER).glob("*")):
        try:
            manifest = inputs_record(segment)
        except SprlError:
            continue  # reported when the segment is verified
        if GROUPS_INPUT not in manifest.inputs:
            continue
        try:
            places.append(find_input(manifest, GROUPS_INPUT, facts.search))
        except InputError:
            not_found.append(segment.name)
    groups = [group for place in places for group in all_groups(place) if isinstance(group, StoredGroup)]
    return RunGroups({group.record.group_id: group for group in groups}, tuple(not_found))


def check_ledger(facts: Facts) -> str:
    """Conditions that were rolled out, scored or trained name a group that exists."""
    from stateplay_rl.stores.ledger import Ledger

    known = run_groups(facts)
    problems = []
    unknown = 0
    with Ledger.open(facts.path / layout.LEDGER, read_only=True) as ledger:
        entries = ledger.entries()
    for entry in entries:
        if entry.state in ("rolled", "scored", "trained", "gated") or entry.group_id is not None:
            group = known.found.get(entry.group_id or "")
            if group is None and entry.group_id is not None and known.not_found:
                unknown += 1
            elif group is None:
                problems.append(f"condition {entry.condition_id} ({entry.state}): group {entry.group_id} is missing")
            elif group.record.condition_id != entry.condition_id:
                problems.append(f"condition {entry.condition_id}: group {entry.group_id} is of another condition")
    used = sum(entry.state != "unseen" for entry in entries)
    passed = collect(problems, f"{used} of {len(entries)} conditions drawn, every group found")
    if unknown:
        raise NotChecked(f"groups of {unknown} of {used} drawn conditions: {known.where_else}")
    return passed


def check_policies(facts: Facts) -> str:
    """Policy hashes of the groups lead to exported weights or to a checkpoint, but for the base policy."""
    known = run_groups(facts)
    used = Counter(group.record.policy_sha256 for group in known.found.values())
    exported = {path.stem for path in (facts.path / layout.POLICY_FOLDER).glob("*.safetensors")}
    kept = _checkpoint_policies(facts.path / layout.CHECKPOINTS_FOLDER)
    without = [f"{sha[:12]} ({used[sha]} groups)" for sha in sorted(used.keys() - exported - kept)]
    note = "; neither exported nor kept (as the base policy, or a checkpoint that was pruned): "
    return (
        f"{len(used)} policies sampled the groups; {len(used.keys() & exported)} are exported, "
        f"{len(used.keys() & kept)} in a checkpoint"
        + (note + ", ".join(without) if without else "")
        + (f"; {known.where_else}" if known.not_found else "")
    )


def _checkpoint_policies(folder: Path) -> set[str]:
    """Content hashes of the live and old policies of the checkpoints that can be read."""
    from stateplay_rl.stores.checkpoints import CheckpointStore
    from stateplay_rl.worlds.policy_bank import sha256_tensors

    store = CheckpointStore(folder)
    hashes: set[str] = set()
    for step in store.steps():
        try:
            payload = store.load(step).payload
        except SprlError:
            continue  # reported by the check of the checkpoints
        hashes |= {sha256_tensors(payload.live), sha256_tensors(payload.old)}
    return hashes


def check_checkpoints(facts: Facts) -> str:
    """Every checkpoint's files against the hashes in its state, and the pointer to the latest."""
    from stateplay_rl.stores.checkpoints import CheckpointStore

    store = CheckpointStore(facts.path / layout.CHECKPOINTS_FOLDER)
    problems: list[str] = []
    for step in store.steps():
        try:
            store.load(step)
        except SprlError as error:
            problems.append(error.what)
    latest = store.latest()
    if latest is not None and latest not in store.steps():
        problems.append(f"{store.root / layout.LATEST} names step {latest}, which is missing")
    return collect(problems, f"{len(store.steps())} checkpoints re-hashed, latest is step {latest}")


def check_heldout(facts: Facts) -> str:
    """Files and latents of the groups of every held-out evaluation."""
    folders = sorted((facts.path / layout.HELDOUT_FOLDER).glob("*"))
    return rehash_groups([GroupStore(folder) for folder in folders])


def check_logs(facts: Facts) -> str:
    """Every line of the run's logs is a whole JSON object; an open run may be writing its last one."""
    from stateplay_rl.stores.jsonl import read_lines

    counts = []
    for name in (layout.METRICS, layout.HELDOUT, layout.TIMINGS, layout.ALARMS):
        file = facts.path / name
        if file.is_file():
            lines = sum(1 for _ in read_lines(file, allow_open_end=facts.manifest is None))
            counts.append(f"{lines} lines in {name}")
    return ", ".join(counts) or "no logs yet"
