"""Groups with the scores that belong to them: a `groups/` and `scores/` pair, or a run's own segments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.rollout import SamplingConfig
from stateplay_rl.errors import CorruptionError, InputError, UsageError
from stateplay_rl.stages.group_source import GroupSource, open_groups
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupRecord
from stateplay_rl.stores.jsonl import read_lines
from stateplay_rl.stores.manifest import Manifest, find_input, is_sealed, read_manifest
from stateplay_rl.stores.scores import ScoreTable
from stateplay_rl.stores.sealed import read_checked
from stateplay_rl.stores.unfinished import UnfinishedRecord, read_unfinished


@dataclass(frozen=True)
class ScoredGroup:
    """A fully judged group: its record, the hash of its `group.json`, its scores in points, its judge and protocol."""

    record: GroupRecord
    sha256: str
    scores: tuple[float, ...]
    judge: tuple[str, str]


@dataclass(frozen=True)
class ScoredGroups:
    """The fully judged groups below one path, by group id.

    Args:
        source: where the groups are read from.
        conditions: the conditions that they were rolled out from.
        sampling: how their candidates were drawn.
        groups: the fully judged ones.
        mode: the mode that their directory records; None where it records none.
        unjudged: groups without a full judgement: failed, in doubt, or not scored yet.
    """

    source: GroupSource
    conditions: Path
    sampling: SamplingConfig
    mode: str | None
    groups: tuple[ScoredGroup, ...]
    unjudged: int


@dataclass(frozen=True)
class _Verdict:
    judge: tuple[str, str]
    scores: tuple[float | None, ...]
    group_sha256: str | None


def read_scored_groups(groups: Path, scores: Path | None, conditions: Path | None) -> ScoredGroups:
    """Pair groups with their scores.

    Args:
        groups: `groups/` of `sprl rollout`, a `run/`, or one of its segments.
        scores: `scores/` of these groups; None takes those of the run's own segments.
        conditions: their conditions; None takes those that the groups' record names.

    Raises:
        UsageError: a `groups/` directory without scores.
        InputError: a path that does not exist or is of another kind, or nothing judged.
        CorruptionError: damaged files, or groups that changed since they were scored.
    """
    source = open_groups(groups)
    record = read_manifest(groups) if is_sealed(groups) else read_unfinished(groups)
    verdicts = _own_verdicts(source, record) if scores is None else _verdicts_of(scores)
    found = _judged(source, verdicts)
    if not found:
        raise InputError(
            f"not one of the {len(source.roots)} groups in {groups} is fully judged",
            "score them: sprl score, and give the directory with --scores",
        )
    return ScoredGroups(
        source,
        _conditions_of(groups, record) if conditions is None else conditions,
        _sampling_of(groups, record, found),
        record.config.get("mode"),
        tuple(found),
        len(source.roots) - len(found),
    )


def one_judge(groups: Sequence[ScoredGroup]) -> tuple[str, str]:
    """The judge behind all these scores: its id and its protocol's hash.

    Raises:
        InputError: several judges, or one with several protocols.
    """
    judges = sorted({group.judge for group in groups})
    if len(judges) > 1:
        raise InputError(
            f"the scores come from {len(judges)} judges ({', '.join(name for name, _ in judges)}): scores of "
            "different judges are never mixed",
            "give one segment of the run, or score all groups with one judge: sprl score",
        )
    return judges[0]


def _verdicts_of(scores: Path) -> dict[str, _Verdict]:
    """Scores of a sealed `scores/` directory, with the hashes of the groups that its judge saw."""
    manifest = read_manifest(scores, schema="scores")
    read_checked(manifest, layout.SCORES)
    hashes: Mapping[str, str] = manifest.extra.get("group_sha256", {})
    return _table_verdicts(scores / layout.SCORES, hashes)


def _own_verdicts(source: GroupSource, record: Manifest | UnfinishedRecord) -> dict[str, _Verdict]:
    """Scores of a run's segments: the table of a sealed one, the log of an open one."""
    if (record.schema_name if isinstance(record, Manifest) else record.schema) == "groups":
        raise UsageError(f"{source.path} holds no scores", "score it, then give --scores DIR")
    found: dict[str, _Verdict] = {}
    for segment in sorted({root.parent for root in source.roots.values()}):
        if (segment / layout.SCORES).is_file():
            found |= _table_verdicts(segment / layout.SCORES, {})
        elif (segment / layout.VERDICTS).is_file():
            found |= _logged_verdicts(segment / layout.VERDICTS)
    return found


def _table_verdicts(path: Path, hashes: Mapping[str, str]) -> dict[str, _Verdict]:
    return {
        group.group_id: _Verdict(
            (group.rows[0].judge_id, group.rows[0].protocol_sha256),
            group.scores,
            hashes.get(group.group_id),
        )
        for group in ScoreTable.read(path)
    }


def _logged_verdicts(path: Path) -> dict[str, _Verdict]:
    found = {}
    for line in read_lines(path, allow_open_end=True):
        try:
            judge = (str(line["judge_id"]), str(line["protocol_sha256"]))
            found[str(line["group_id"])] = _Verdict(judge, tuple(line["scores"]), None)
        except (KeyError, TypeError) as error:
            raise CorruptionError(f"{path}: a verdict is damaged ({error!r})", "restore the run") from error
    return found


def _judged(source: GroupSource, verdicts: Mapping[str, _Verdict]) -> list[ScoredGroup]:
    judged = []
    for group_id in (name for name in source.roots if name in verdicts):
        verdict = verdicts[group_id]
        scores = [score for score in verdict.scores if score is not None]
        if not scores or len(scores) < len(verdict.scores):
            continue
        group = source.read(group_id, verdict.group_sha256)
        if len(scores) != group.record.candidates:
            raise CorruptionError(
                f"group {group_id} has {group.record.candidates} candidates and {len(scores)} scores",
                "score these groups again",
            )
        judged.append(ScoredGroup(group.record, group.sha256, tuple(scores), verdict.judge))
    return judged


def _conditions_of(groups: Path, record: Manifest | UnfinishedRecord) -> Path:
    if isinstance(record, Manifest):
        return find_input(record, "conditions", [groups])
    if "conditions" not in record.inputs:
        raise InputError(f"{groups} does not record its conditions", "give them with --conditions")
    return Path(os.path.normpath(groups.absolute() / record.inputs["conditions"].path))


def _sampling_of(groups: Path, record: Manifest | UnfinishedRecord, found: Sequence[ScoredGroup]) -> SamplingConfig:
    """How all these candidates were drawn: the grid of noise levels that training would visit."""
    config: Mapping[str, Any] = record.config
    try:
        sampling = SamplingConfig.model_validate(config["sampling"])
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{groups} does not record how its candidates were sampled ({error})", "roll the groups out again"
        ) from error
    for group in found:
        found_words = (
            f"{group.record.candidates} candidates of {group.record.sampling_steps} {group.record.sampler} steps"
        )
        words = f"{sampling.candidates} candidates of {sampling.steps} {sampling.sampler} steps"
        if found_words != words:
            raise CorruptionError(
                f"group {group.record.group_id} has {found_words}, its directory records {words}",
                "roll the groups out again",
            )
    return sampling
