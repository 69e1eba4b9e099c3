"""Small sprl directories for the tests of `verify dir`: conditions -> groups -> scores, and a run."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointPayload, CheckpointStore
from stateplay_rl.stores.conditions import (
    ConditionRecord,
    hash_actions,
    write_condition_files,
    write_conditions,
)
from stateplay_rl.stores.groups import GroupRecord, GroupRow, GroupStore, write_groups_parquet
from stateplay_rl.stores.hashing import hash_frames
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.scores import ScoreRow, ScoreTable
from stateplay_rl.stores.segments import open_segment
from stateplay_rl.worlds.preparation import action_bin_edges

CONDITION_IDS = ("c0", "c1")
POLICY = "a" * 64


class EmptyConfig(FrozenConfig):
    """No settings."""


@contextmanager
def writing(path: Path, schema: str, inputs: dict[str, Path] | None = None):
    with OutputDirectory.open(
        path,
        schema=schema,
        version=layout.SCHEMAS[schema],
        command="test",
        config=EmptyConfig(),
        inputs=inputs or {},
        resume=False,
        overwrite=False,
    ) as out:
        yield out


def write_conditions_folder(path: Path) -> Path:
    with writing(path, "conditions") as out:
        records = []
        for order, name in enumerate(CONDITION_IDS):
            frame = np.full((32, 48, 3), 10 * order, np.uint8)
            raw_RK = np.zeros((12, 11), np.int32)
            raw_RK[4, order] = 1
            write_condition_files(out, name, frame, raw_RK, raw_RK, {})
            records.append(
                ConditionRecord(
                    condition_id=name,
                    clip=None,
                    prompt="SF3 Game.",
                    mechanics_class="normal",
                    distribution="normal",
                    npc_category="",
                    strategy="",
                    fps=20.0,
                    frames=9,
                    latent_frames=3,
                    action_rows=12,
                    action_bin_edges=action_bin_edges(12, 3),
                    first_frame_sha256=hash_frames(frame),
                    actions_sha256=hash_actions(raw_RK),
                    cluster_id=order,
                    pool="pass",
                    student_split="train",
                    order=order,
                    warnings=(),
                )
            )
        write_conditions(out, records)
        out.seal()
    return path


def write_group(root: Path, condition_id: str, policy: str = POLICY):
    seed = CONDITION_IDS.index(condition_id)
    generator = torch.Generator().manual_seed(seed)
    frames = np.full((9, 32, 48, 3), 50 + seed, np.uint8)
    record = GroupRecord(
        group_id=f"g-{condition_id}",
        condition_id=condition_id,
        batch=0,
        policy_sha256=policy,
        world_sha256="b" * 64,
        sampler="euler",
        sampling_steps=4,
        seeds=(1, 2),
        prompt="SF3 Game.",
        fps=20.0,
        frames=9,
        latent_frames=3,
        buttons=((0,) * 11,) * 12,
        action_bin_edges=action_bin_edges(12, 3),
        mechanics_class="normal",
    )
    latents = [torch.randn(4, 3, 4, 6, generator=generator).bfloat16() for _ in range(2)]
    return GroupStore(root).write(record, frames[0], latents, [frames, frames])


def write_groups_folder(path: Path, conditions: Path) -> Path:
    with writing(path, "groups", {"conditions": conditions}) as out:
        groups = [write_group(out.path, name) for name in CONDITION_IDS]
        write_groups_parquet(out.path / layout.GROUPS, [GroupRow.of(group) for group in groups])
        out.seal()
    return path


def score_rows(group_ids):
    return [
        ScoreRow(group_id, k, 40.0 + k, "scored", None, "judge", "c" * 64, None)
        for group_id in group_ids
        for k in range(2)
    ]


def write_scores_folder(path: Path, groups: Path) -> Path:
    store = GroupStore(groups)
    with writing(path, "scores", {"groups": groups}) as out:
        ScoreTable(score_rows(store.finished())).write(out.path / layout.SCORES)
        out.seal(extra={"group_sha256": store.hashes()})
    return path


def write_chain(root: Path) -> Path:
    """conditions/, groups/ and scores/ below `root`; returns scores/."""
    conditions = write_conditions_folder(root / "conditions")
    return write_scores_folder(root / "scores", write_groups_folder(root / "groups", conditions))


def write_hand_made_run(root: Path, *, seal: bool = True) -> Path:
    """A run of one hand-made batch: its segment reads groups/ and scores/ of `root` and holds no groups."""
    scores = write_chain(root)
    reads = {"conditions": root / "conditions"}
    with writing(root / "run", "run", reads) as run:
        inputs = {**reads, "groups": root / "groups", "scores": scores}
        segment = open_segment(run, "hand", config=EmptyConfig(), inputs=inputs)
        ScoreTable(score_rows(GroupStore(root / "groups").finished())).write(segment.path / layout.SCORES)
        with Ledger.create(run.path / layout.LEDGER, CONDITION_IDS) as ledger:
            ledger.reserve(0, 2)
            for name in CONDITION_IDS:
                ledger.mark(0, name, "rolled", group_id=f"g-{name}")
        if seal:
            segment.seal()
            run.seal()
        else:
            segment.close()
    return root / "run"


def write_run(root: Path, *, seal: bool = True) -> Path:
    """A run of one batch with its segment, ledger, checkpoints, logs and an exported policy."""
    conditions = write_conditions_folder(root / "conditions")
    with writing(root / "run", "run", {"conditions": conditions}) as run:
        segment = open_segment(run, "a", config=EmptyConfig(), inputs={"conditions": conditions})
        groups = [write_group(segment.path / layout.GROUPS_FOLDER, name) for name in CONDITION_IDS]
        ScoreTable(score_rows([g.record.group_id for g in groups])).write(segment.path / layout.SCORES)
        with Ledger.create(run.path / layout.LEDGER, CONDITION_IDS) as ledger:
            ledger.reserve(0, 2)
            for name in CONDITION_IDS:
                ledger.mark(0, name, "rolled", group_id=f"g-{name}")
        store = CheckpointStore(run.path / layout.CHECKPOINTS_FOLDER)
        for step in (1, 2):
            weights = {"w": torch.full((3,), float(step))}
            store.save(step, CheckpointPayload(weights, weights, weights, {"batch": step}))
        LineLog(run.path / layout.METRICS).append({"batch": 0})
        run.write_bytes(layout.policy_file("d" * 64), b"weights")
        if seal:
            segment.seal()
            run.seal()
        else:
            segment.close()
    return root / "run"
