"""Training examples: scored groups with their split, and the request that their judge saw."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.config.train_rm import TrainRmConfig
from stateplay_rl.errors import CorruptionError, InputError, UsageError
from stateplay_rl.judges.protocol import JudgingProtocol
from stateplay_rl.reward_model.answers import target_scores
from stateplay_rl.reward_model.payload import GroupPayload, build_from_group, read_request
from stateplay_rl.stages.group_source import GroupSource
from stateplay_rl.stages.scored_groups import ScoredGroup, one_judge, read_scored_groups
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_json
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.jsonl import read_lines
from stateplay_rl.stores.manifest import is_sealed, read_manifest
from stateplay_rl.stores.scores import ScoreTable
from stateplay_rl.stores.unfinished import read_unfinished

SPLITS = ("train", "validation", "test")
DATASET_COLUMNS = {
    "group_id": "str",
    "group_sha256": "str",
    "condition_id": "str",
    "cluster_id": "int",
    "split": "str",
    "mechanics_class": "str",
    "request_id": "str?",
    "order": "int[]",
    "labels": "str[]",
    "raw_scores": "float[]",
    "targets": "int[]",
    "prompt_tokens": "int",
    "answer_tokens": "int",
    "images": "int",
}


@dataclass(frozen=True)
class Example:
    """One scored group.

    Args:
        split: train, validation or test, by the condition's cluster.
        raw_scores: the judge's points by stored candidate.
        request_id: the paid request behind them, None for a judge in this process.
    """

    group_id: str
    group_sha256: str
    condition_id: str
    cluster: int
    split: str
    mechanics_class: str
    raw_scores: tuple[float, ...]
    request_id: str | None

    @property
    def targets(self) -> tuple[int, ...]:
        """Whole points by stored candidate."""
        return target_scores(self.raw_scores)


@dataclass(frozen=True)
class Examples:
    """All examples of a training and how to get their requests.

    Args:
        judge_id: the one judge behind all scores.
        protocol: what groups without a stored request are shown by.
        requests: the request store, None when no example needs one.
        unjudged: groups that are left out because they have no full judgement.
    """

    items: tuple[Example, ...]
    source: GroupSource
    conditions: Path
    judge_id: str
    protocol: JudgingProtocol
    requests: Path | None
    unjudged: int

    def of_split(self, split: str) -> tuple[Example, ...]:
        """Examples of a split, by group id."""
        return tuple(item for item in self.items if item.split == split)

    def only(self, recorded: Mapping[str, str]) -> Examples:
        """The examples that an interrupted training began with: an open run may have grown since.

        Args:
            recorded: group id -> hash of its `group.json`.

        Raises:
            CorruptionError: one of them is gone or has changed.
        """
        found = {item.group_id: item for item in self.items}
        for group_id, sha256 in recorded.items():
            if group_id not in found or found[group_id].group_sha256 != sha256:
                raise CorruptionError(
                    f"group {group_id} is gone or has changed since this training began", "start over with --overwrite"
                )
        return replace(self, items=tuple(found[group_id] for group_id in sorted(recorded)))

    def payload(self, example: Example, order: Sequence[int] | None = None) -> GroupPayload:
        """What the judge saw; with `order` the same group in another order, built again from its files.

        Raises:
            CorruptionError: the group changed since it was scored, or a picture of it is damaged.
        """
        if example.request_id is not None and order is None:
            assert self.requests is not None, "examples with requests have a store"
            return read_request(self.requests, example.request_id, example.group_id)
        group = self.source.read(example.group_id, example.group_sha256)
        return build_from_group(group, self.protocol, order)

    def sha256(self) -> str:
        """Hash over everything that is learned from."""
        return sha256_json(
            [
                [e.group_sha256, e.split, list(e.raw_scores), e.request_id]
                for e in sorted(self.items, key=lambda e: e.group_id)
            ]
            + [self.protocol.sha256]
        )


@dataclass(frozen=True)
class ExampleInputs:
    """Where examples come from; see `read_scored_groups`."""

    groups: Path
    scores: Path | None
    conditions: Path | None


def read_examples(config: TrainRmConfig, inputs: ExampleInputs) -> Examples:
    """Scored groups with their splits, clusters checked.

    Raises:
        InputError: a cluster in two splits, an empty split, unknown conditions, or no scores.
        CorruptionError: damaged files, or groups that changed since they were scored.
    """
    found = read_scored_groups(inputs.groups, inputs.scores, inputs.conditions)
    judge_id = one_judge(found.groups)[0]
    conditions = ConditionStore.open(found.conditions)
    request_ids = _request_ids(inputs, found.source)
    items = tuple(_example(group, conditions, request_ids) for group in found.groups)
    _check_splits(items, found.conditions)
    record = _judge_record(inputs)
    return Examples(
        items,
        found.source,
        found.conditions,
        judge_id,
        JudgingProtocol(_protocol(config, record)),
        _requests_folder(config, record, inputs, items),
        found.unjudged,
    )


def _example(group: ScoredGroup, conditions: ConditionStore, request_ids: Mapping[str, str]) -> Example:
    condition = conditions.by_id(group.record.condition_id)
    return Example(
        group.record.group_id,
        group.sha256,
        condition.condition_id,
        condition.cluster_id,
        # Held-out conditions are for evaluation only, whatever their split says.
        "test" if condition.pool == "heldout" else condition.student_split,
        group.record.mechanics_class,
        group.scores,
        request_ids.get(group.record.group_id),
    )


def _check_splits(items: Sequence[Example], conditions: Path) -> None:
    """No cluster may stand in two splits, and every split must hold something."""
    splits: dict[int, set[str]] = defaultdict(set)
    for item in items:
        if item.split not in SPLITS:
            raise CorruptionError(f"{conditions}: student_split is {item.split!r}", "build the conditions again")
        splits[item.cluster].add(item.split)
    leaking = sorted(cluster for cluster, names in splits.items() if len(names) > 1)
    if leaking:
        names = ", ".join(sorted(splits[leaking[0]]))
        raise InputError(
            f"{conditions}: {len(leaking)} clusters stand in several splits (cluster {leaking[0]} in {names}): "
            "the test would measure memory",
            "build the conditions again: sprl build-conditions",
        )
    counts = Counter(item.split for item in items)
    empty = [split for split in SPLITS if not counts[split]]
    if empty:
        have = ", ".join(f"{counts[split]} {split}" for split in SPLITS)
        raise InputError(
            f"no scored group in split {' and '.join(empty)} (scored groups: {have})",
            "score more groups: each split must hold some",
        )


def _judge_record(inputs: ExampleInputs) -> Mapping[str, Any]:
    """Settings of the judge behind the scores, as its directory records them."""
    place = inputs.groups if inputs.scores is None else inputs.scores
    config = read_manifest(place).config if is_sealed(place) else read_unfinished(_run_of(place)).config
    judge = config.get("judge", {})
    return judge if isinstance(judge, Mapping) else {}


def _run_of(place: Path) -> Path:
    """The unfinished directory that `place` is, or lies in."""
    return next((p for p in (place, *place.resolve().parents[:3]) if (p / layout.UNFINISHED).is_file()), place)


def _protocol(config: TrainRmConfig, judge: Mapping[str, Any]) -> ProtocolConfig:
    """The judge's own protocol when it was shown pictures; else the configured one.

    Raises:
        UsageError: both exist and differ: the student would not see what its judge saw.
    """
    shown = judge.get("name") == "openai" and isinstance(judge.get("protocol"), Mapping)
    recorded = ProtocolConfig.model_validate(judge["protocol"]) if shown else None
    if recorded is not None and config.protocol is not None and config.protocol != recorded:
        raise UsageError(
            "the setting `protocol` is not what the judge behind these scores was shown",
            "leave `protocol` out: the judge's own is taken",
        )
    return recorded or config.protocol or ProtocolConfig()


def _request_ids(inputs: ExampleInputs, source: GroupSource) -> dict[str, str]:
    """Request of every scored group that has one."""
    found: dict[str, str] = {}
    if inputs.scores is not None:
        tables = [inputs.scores / layout.SCORES]
    else:
        tables = [root.parent / layout.SCORES for root in sorted(set(source.roots.values()))]
    for path in tables:
        if path.is_file():
            found |= {row.group_id: row.request_id for row in ScoreTable.read(path).rows if row.request_id}
        elif (path.parent / layout.VERDICTS).is_file():
            for line in read_lines(path.parent / layout.VERDICTS, allow_open_end=True):
                if line.get("request_id"):
                    found[str(line["group_id"])] = str(line["request_id"])
    return found


def _requests_folder(
    config: TrainRmConfig, judge: Mapping[str, Any], inputs: ExampleInputs, items: Sequence[Example]
) -> Path | None:
    """The request store: configured, as the judge's record says, below RL_RUN_ROOT, or beside the inputs.

    Raises:
        InputError: examples name requests and no store is found.
    """
    if not any(item.request_id for item in items):
        return None
    recorded = judge.get("requests", {})
    folder = recorded.get("folder") if isinstance(recorded, Mapping) else None
    places = [config.requests, Path(folder) if folder else None]
    root = os.environ.get("RL_RUN_ROOT", "")
    places.append(Path(root) / layout.REQUESTS_FOLDER if root else None)
    for path in (inputs.scores, inputs.groups):
        if path is not None:
            places += [parent / layout.REQUESTS_FOLDER for parent in path.resolve().parents[:3]]
    tried = [place for place in places if place is not None]
    for place in tried[:1] if config.requests is not None else tried:
        if (place / layout.REQUEST_RAW_FOLDER).is_dir():
            return place
    raise InputError(
        f"the scores name requests, and no request store was found (looked at {', '.join(map(str, tried[:4]))})",
        "give its place: --set requests=DIR",
    )
