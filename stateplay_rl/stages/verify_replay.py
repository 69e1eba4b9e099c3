"""The part of `verify dir` that computes again: one score, and one batch's NFT steps, from what is stored.

Hashes say that bytes are those that were written. These say that the bytes lead to the numbers beside them.
No code that a directory names is loaded: a plug-in judge is not replayed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from stateplay_rl.checks.lines import CheckLine, NotChecked, require, run_check
from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.config.score import JudgeConfig
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import CheckError, InputError, SprlError
from stateplay_rl.judges.answers import read_labelled_answer
from stateplay_rl.stages.judge_choice import make_judge
from stateplay_rl.stages.train_nft import state
from stateplay_rl.stages.train_nft.data import BatchData
from stateplay_rl.stages.train_nft.in_flight import InFlight
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stages.train_nft.samples import JudgedGroup, build_samples, plan_steps
from stateplay_rl.stages.train_nft.update import Updater
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.requests import read_attempts, read_raw
from stateplay_rl.stores.scores import GroupScores, ScoreTable
from stateplay_rl.stores.sealed import Manifest, find_input, is_sealed, read_manifest
from stateplay_rl.stores.segments import Segment, list_segments
from stateplay_rl.worlds.base import World
from stateplay_rl.worlds.encoded import EncodedStore
from stateplay_rl.worlds.load import load_world
from stateplay_rl.worlds.world_files import resolve_world

SCORE_TOLERANCE_POINTS = 1e-6
UPDATE_TOLERANCE = 0.01
_OTHER_WEIGHTS = (
    "restore groups and checkpoints from a copy; sprl verify install says whether this machine computes right"
)
"""Largest distance of the replayed weights, as a share of how far the batch moved them; 0 on the same machine."""


def replay_lines(path: Path, search: Sequence[Path] = ()) -> list[CheckLine]:
    """Replay what the kind of a directory allows.

    Args:
        path: a sealed `scores/`, `segment` or `run/`; other kinds give no line.
        search: folders in which inputs are looked for.
    """
    if not is_sealed(path):
        return []
    try:
        manifest = read_manifest(path)
    except SprlError:
        return []  # reported by the walk
    if manifest.schema_name in ("scores", "segment"):
        return [run_check("replay: one score", lambda: _replay_score(manifest, search))]
    if manifest.schema_name == "run":
        return [
            run_check("replay: one score", lambda: _replay_run_score(manifest, search)),
            run_check("replay: one batch", lambda: _replay_batch(manifest, search)),
        ]
    return []


class _ScoredConfig(FrozenConfig):
    """The judge of a scores directory's config, whatever else stands in it."""

    judge: JudgeConfig = JudgeConfig()


def _replay_run_score(manifest: Manifest, search: Sequence[Path]) -> str:
    for segment in reversed(list_segments(manifest.root)):
        if segment.sealed:
            return _replay_score(read_manifest(segment.path), search)
    raise NotChecked("no sealed segment")


def _replay_score(manifest: Manifest, search: Sequence[Path]) -> str:
    """The first complete group: from its stored answer when it was paid, by the referee when that judged it."""
    table = ScoreTable.read(manifest.root / layout.SCORES)
    complete = next((group for group in table if group.complete), None)
    if complete is None:
        raise NotChecked("no group was fully judged")
    if "judge" not in manifest.config:
        raise NotChecked("the directory does not record its judge")
    judge = _ScoredConfig.model_validate({"judge": manifest.config["judge"]}).judge
    if complete.rows[0].request_id is not None:
        return _from_answer(complete, manifest, judge, search)
    if judge.name != "referee":
        raise NotChecked(f"the judge {judge.name!r} is not run again: its code or its scores are not stored here")
    group = _group(manifest, complete.group_id, search)
    referee = make_judge(judge, world=str(_world_name(manifest, search)))
    if referee.protocol_sha256 != complete.rows[0].protocol_sha256:
        raise NotChecked("the referee of this version is another one than judged these groups")
    return _compared(complete, referee.score_group(group).scores, f"by {referee.judge_id}")


def _from_answer(complete: GroupScores, manifest: Manifest, judge: JudgeConfig, search: Sequence[Path]) -> str:
    request_id = str(complete.rows[0].request_id)
    folder = _request_store(manifest, search, request_id)
    raw = read_raw(folder, request_id)
    attempt = next(attempt for attempt in read_attempts(folder) if attempt.request_id == request_id)
    labels, order = tuple(raw["labels"]), tuple(raw["order"])
    _, parsed, reason = read_labelled_answer(str(raw["answer"]), labels, attempt.model)
    if parsed is None:
        raise CheckError(f"the stored answer of {request_id} gives no scores: {reason}", "restore the request store")
    found: list[float | None] = [None] * len(labels)
    for label, candidate in zip(labels, order, strict=True):
        found[int(candidate)] = parsed.scores[label]
    return _compared(complete, found, f"from the stored answer {request_id}")


def _request_store(manifest: Manifest, search: Sequence[Path], request_id: str) -> Path:
    recorded = [
        Path(os.path.normpath(manifest.root.absolute() / facts["requests"]))
        for facts in (manifest.extra.get("protocols") or {}).values()
    ]
    above = [folder / layout.REQUESTS_FOLDER for folder in manifest.root.absolute().parents][:5]
    for folder in (*recorded, *above, *(place / layout.REQUESTS_FOLDER for place in search)):
        if (folder / layout.raw_file(request_id)).is_file():
            return folder
    raise NotChecked(f"the request store with {request_id} is not here", "give --search FOLDER")


def _compared(complete: GroupScores, found: Sequence[float | None], how: str) -> str:
    stored = complete.scores
    wrong = [
        k
        for k, (one, other) in enumerate(zip(stored, found, strict=True))
        if one is None or other is None or abs(one - other) > SCORE_TOLERANCE_POINTS
    ]
    require(
        not wrong,
        f"group {complete.group_id}: {how} {list(found)}, stored {list(stored)}",
        "restore the directory from a copy, or score its groups again: sprl score",
    )
    return f"group {complete.group_id}: {len(stored)} scores {how} as stored"


def _group(manifest: Manifest, group_id: str, search: Sequence[Path]) -> StoredGroup:
    own = GroupStore(manifest.root / layout.GROUPS_FOLDER)
    if own.exists(group_id):
        return own.read(group_id)
    try:
        place = find_input(manifest, "groups", search)
    except (InputError, KeyError) as error:
        raise NotChecked("the groups were not found", "give --search FOLDER") from error
    for folder in (place, *(segment.path / layout.GROUPS_FOLDER for segment in list_segments(place))):
        if GroupStore(folder).exists(group_id):
            return GroupStore(folder).read(group_id)
    raise NotChecked(f"group {group_id} was not found", "give --search FOLDER")


def _world_name(manifest: Manifest, search: Sequence[Path]) -> object:
    named = manifest.extra.get("world") or manifest.config.get("world")
    if named is not None:
        return named
    groups = find_input(manifest, "groups", search)
    return read_manifest(groups).extra.get("world", "arena")


# -- one batch -------------------------------------------------------------------------------------------


def _replay_batch(manifest: Manifest, search: Sequence[Path]) -> str:
    """Train the last batch between two kept checkpoints again, from its stored latents and scores."""
    run, store = manifest.root, CheckpointStore(manifest.root / layout.CHECKPOINTS_FOLDER)
    steps = store.steps()
    before = next((step for step in reversed(steps) if step + 1 in steps), None)
    if before is None:
        raise NotChecked("no two checkpoints of neighbouring batches are kept")
    segment = _segment_of(run, before)
    config = TrainNftConfig.model_validate(read_manifest(segment.path).config)
    world_config = resolve_world(config.world)
    if world_config.preset != "arena" and not torch.cuda.is_available():
        raise NotChecked(f"world {config.world} needs a GPU to train a batch again", "run it where it was trained")
    try:
        conditions = ConditionStore.open(find_input(manifest, "conditions", search))
    except InputError as error:
        raise NotChecked("the conditions were not found", "give --search FOLDER") from error
    world = load_world(world_config)
    if world.sha256 != manifest.extra["world_sha256"]:
        raise NotChecked(f"world {config.world} is not the one that was trained: its weights differ")
    with tempfile.TemporaryDirectory(prefix="sprl-replay-") as work:
        replayed = _trained(run, segment, config, world, conditions, store, before, Path(work))
    return _distance(store, before, replayed)


def _segment_of(run: Path, batch: int) -> Segment:
    """The segment that holds the batch's groups."""
    with Ledger.open(run / layout.LEDGER, read_only=True) as ledger:
        members = ledger.members(batch)
    names = {entry.group_id for entry in members if entry.group_id is not None}
    for segment in list_segments(run):
        if names and names <= set(segment.groups.finished()):
            return segment
    raise NotChecked(f"batch {batch} was made by hand or has no groups: nothing to train again")


def _trained(
    run: Path,
    segment: Segment,
    config: TrainNftConfig,
    world: World,
    conditions: ConditionStore,
    store: CheckpointStore,
    batch: int,
    work: Path,
) -> dict[str, Tensor]:
    """Live weights after the batch's optimizer steps. Nothing is written into the run."""
    groups = world.set_mode(config.mode)
    kept = EncodedStore(config.encoded or run / "encoded", world)
    judged = _judged(run, segment, batch)
    have = all(
        conditions.by_id(group.condition_id).clip is None or kept.path(group.condition_id).is_file() for group in judged
    )
    encoded = kept if have else EncodedStore(work / "encoded", world)
    data = BatchData(world, conditions, segment.groups, encoded, InFlight(work))
    objective = Objective(world, config, data.conditions_of, data.latents_of, data.real_of, data.has_clip)
    updater = Updater(objective, groups, config, Processes(0, 1, world.device))
    state.unpack(store.load(batch), world, updater, None)
    steps = plan_steps(build_samples(judged, config, batch).samples, config, batch)
    updater.run(steps, batch, len(steps) // config.optimizer.inner_epochs)
    live: dict[str, Tensor] = world.policies.state("live")
    return live


def _judged(run: Path, segment: Segment, batch: int) -> list[JudgedGroup]:
    """The batch's groups in the order of the ledger, with the scores of the segment's verdicts."""
    with Ledger.open(run / layout.LEDGER, read_only=True) as ledger:
        members = [entry.group_id for entry in ledger.members(batch)]
    lines = {line["group_id"]: line for line in LineLog(segment.path / layout.VERDICTS).read()}
    found = []
    for group_id in members:
        record = segment.groups.read(str(group_id)).record
        line = lines[group_id]
        found.append(
            JudgedGroup(
                group_id=record.group_id,
                condition_id=record.condition_id,
                mechanics_class=record.mechanics_class,
                latent_frames=record.latent_frames,
                scores=tuple(line["scores"]),
                reason=line["reason"],
                line=line,
                picture={},
                picture_real=None,
            )
        )
    return found


def _distance(store: CheckpointStore, before: int, replayed: dict[str, Tensor]) -> str:
    first, last = (store.load(step).payload.live for step in (before, before + 1))
    moved = sum(float((last[name] - first[name]).double().square().sum()) for name in last) ** 0.5
    missed = sum(float((last[name] - replayed[name].cpu()).double().square().sum()) for name in last) ** 0.5
    if moved == 0.0:
        what = f"batch {before} moved nothing, trained again it moves the weights by {missed:.1e}"
        require(missed == 0.0, what, _OTHER_WEIGHTS)
        return f"batch {before} moved nothing, and does not when it is trained again"
    require(
        missed <= UPDATE_TOLERANCE * moved,
        f"batch {before} moved the weights by {moved:.3e}; trained again it ends {missed:.3e} away",
        _OTHER_WEIGHTS,
    )
    return f"batch {before} trained again from its latents and scores: {missed / moved:.1e} of its own distance away"
