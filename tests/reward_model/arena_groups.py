"""Stored groups of arena made from engine renderings: no world model is needed to test a reward model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from stateplay_rl.arena.dataset import CLEAR_CHANGE, ArenaCondition, class_sequence, draw_condition, render, simulate
from stateplay_rl.arena.state import FPS, FRAMES, Glitches
from stateplay_rl.config.conditions import ConditionsConfig
from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.config.rollout import RolloutConfig, SamplingConfig
from stateplay_rl.config.score import JudgeConfig, ScoreConfig
from stateplay_rl.judges import payload
from stateplay_rl.judges.protocol import JudgingProtocol
from stateplay_rl.reward_model.small_model import (
    SmallSizes,
    build_config,
    build_model,
    train_tokenizer,
    write_folder,
)
from stateplay_rl.stages import score
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionRecord, hash_actions, write_condition_files, write_conditions
from stateplay_rl.stores.groups import GroupRecord, GroupRow, GroupStore, StoredGroup, write_groups_parquet
from stateplay_rl.stores.hashing import hash_frames
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.worlds.preparation import action_bin_edges

SHOWN = 2
"""Frames a video: requests of 11 pictures."""
VIDEOS = ("Reference", "Candidate A", "Candidate B", "Candidate C", "Candidate D")
LATENT_FRAMES = 9
GLITCHES = (Glitches(), Glitches(True, False), Glitches(False, True), Glitches(True, True))


def conditions(count: int, seed: int) -> list[ArenaCondition]:
    """Conditions in which bars move clearly."""
    return [draw_condition(seed, i, name, CLEAR_CHANGE) for i, name in enumerate(class_sequence(count, seed))]


def write_group(store: GroupStore, condition: ArenaCondition, *, reference: bool = True) -> StoredGroup:
    """A group whose candidates are the true future and three glitched ones, in a seeded order."""
    order = np.random.default_rng(condition.index).permutation(4)
    videos = [render(simulate(condition, GLITCHES[k])) for k in order]
    name = f"{condition.seed}-{condition.index}"
    record = GroupRecord(
        group_id=f"group-{name}",
        condition_id=f"condition-{name}",
        batch=0,
        policy_sha256="0" * 64,
        world_sha256="1" * 64,
        sampler="euler",
        sampling_steps=5,
        seeds=(1, 2, 3, 4),
        prompt=condition.prompt,
        fps=float(FPS),
        frames=FRAMES,
        latent_frames=LATENT_FRAMES,
        buttons=tuple(tuple(int(v) for v in row) for row in condition.held_buttons),
        action_bin_edges=action_bin_edges(len(condition.held_buttons), LATENT_FRAMES),
        mechanics_class=condition.mechanics_class.lower(),
    )
    truth = render(simulate(condition))
    latents = [torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16)] * 4
    return store.write(record, truth[0], latents, videos, truth if reference else None)


def write_groups(folder: Path, count: int, seed: int = 11) -> list[StoredGroup]:
    """`count` groups below `folder`."""
    store = GroupStore(folder)
    return [write_group(store, condition) for condition in conditions(count, seed)]


@dataclass(frozen=True)
class Inputs:
    """Sealed directories that `sprl train-rm` reads."""

    conditions: Path
    groups: Path
    scores: Path


def write_inputs(root: Path, splits: Sequence[str], seed: int = 11, clusters: Sequence[int] | None = None) -> Inputs:
    """A group for every entry of `splits`, judged by the referee.

    Args:
        splits: student split of each condition; `heldout` puts it into the held-out pool.
        clusters: cluster of each condition; None gives each its own.
    """
    chosen = conditions(len(splits), seed)
    inputs = Inputs(root / "conditions", root / "groups", root / "scores")
    numbers = range(len(chosen)) if clusters is None else clusters
    _write_conditions(inputs.conditions, chosen, splits, numbers)
    with OutputDirectory.open(
        inputs.groups,
        schema="groups",
        version=layout.SCHEMAS["groups"],
        command="rollout",
        config=RolloutConfig(sampling=SamplingConfig(steps=5)),
        inputs={"conditions": inputs.conditions},
        resume=False,
        overwrite=False,
    ) as output:
        store = GroupStore(output.path)
        stored = [write_group(store, condition) for condition in chosen]
        write_groups_parquet(output.path / layout.GROUPS, [GroupRow.of(group) for group in stored])
        output.seal(extra={"world": "arena"})
    config = ScoreConfig(judge=JudgeConfig(name="referee"))
    score.run(config, score.ScoreInputs(inputs.groups), inputs.scores)
    return inputs


def _write_conditions(
    out: Path, chosen: Sequence[ArenaCondition], splits: Sequence[str], clusters: Sequence[int]
) -> None:
    with OutputDirectory.open(
        out,
        schema="conditions",
        version=layout.SCHEMAS["conditions"],
        command="build-conditions",
        config=ConditionsConfig(),
        inputs={},
        resume=False,
        overwrite=False,
    ) as output:
        records = []
        for order, (condition, split, cluster) in enumerate(zip(chosen, splits, clusters, strict=True)):
            name = f"condition-{condition.seed}-{condition.index}"
            first, held = render(simulate(condition))[0], condition.held_buttons
            write_condition_files(output, name, first, held, held, {})
            edges = action_bin_edges(len(held), LATENT_FRAMES)
            records.append(
                ConditionRecord(
                    condition_id=name,
                    clip=None,
                    prompt=condition.prompt,
                    mechanics_class=condition.mechanics_class.lower(),
                    distribution=condition.mechanics_class,
                    npc_category="none",
                    strategy=condition.strategy,
                    fps=float(FPS),
                    frames=FRAMES,
                    latent_frames=LATENT_FRAMES,
                    action_rows=len(held),
                    action_bin_edges=edges,
                    first_frame_sha256=hash_frames(first),
                    actions_sha256=hash_actions(held),
                    cluster_id=cluster,
                    pool="heldout" if split == "heldout" else "pass",
                    student_split="test" if split == "heldout" else split,
                    order=order,
                    warnings=(),
                )
            )
        write_conditions(output, records)
        output.seal()


def write_tiny_model(folder: Path, seed: int = 0) -> Path:
    """A model folder of a few hundred thousand weights whose tokenizer writes the request briefly."""
    folder.mkdir(parents=True)
    labels = ("A", "B", "C", "D")
    protocol = JudgingProtocol(ProtocolConfig(frames=SHOWN))
    phrases = [line for line in protocol.instruction(labels).splitlines() if line]
    phrases += [payload.FIRST_FRAME, payload.OPPONENT, payload.ACTIONS, payload.REFERENCE, payload.END]
    phrases += [
        f"{name}, frame {n} of {SHOWN}, time {t} s:" for name in VIDEOS for n, t in ((1, "0.000"), (2, "1.600"))
    ]
    sizes = SmallSizes()
    texts = [condition.prompt for condition in conditions(8, 5)] + ['{"scores": {"A": 1, "B": 2, "C": 3, "D": 4}}']
    tokenizer = train_tokenizer(texts, 600, phrases)
    write_folder(folder, build_model(build_config(sizes, tokenizer), seed), tokenizer, sizes)
    return folder
