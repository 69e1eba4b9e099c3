"""Groups of arena without a model: the engine, its glitched twins and a frozen video; many from a few.

A drill of the judge needs thousands of groups whose requests differ. Rendering them all would take longer than
judging them, so a few are rendered and the others differ in one harmless word of the opponent's text.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from stateplay_rl.arena.dataset import ArenaCondition, draw_conditions, render, simulate
from stateplay_rl.arena.state import FPS, Glitches
from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import pretty_json
from stateplay_rl.stores.groups import GROUP_VERSION, GroupRecord, GroupStore, StoredGroup
from stateplay_rl.stores.manifest import OutputDirectory

CANDIDATES = 4


class RolloutWorld(FrozenConfig):
    """The one setting of a rollout that `score` reads."""

    world: str = "arena"


def videos_of(condition: ArenaCondition) -> tuple[list[np.ndarray], np.ndarray]:
    """Four candidates from good to bad, and the reference."""
    truth = render(simulate(condition))
    glitches = (Glitches(), Glitches(hits_drain_nothing=True), Glitches(True, True))
    return [*(render(simulate(condition, g)) for g in glitches), np.repeat(truth[:1], len(truth), axis=0)], truth


def write_group(store: GroupStore, condition: ArenaCondition, group_id: str) -> StoredGroup:
    """Render and store one group; the candidates' order depends on the condition."""
    videos, truth = videos_of(condition)
    shift = condition.index % CANDIDATES
    videos = videos[shift:] + videos[:shift]
    record = GroupRecord(
        group_id=group_id,
        condition_id=f"c{condition.index}",
        batch=0,
        policy_sha256="0" * 64,
        world_sha256="1" * 64,
        sampler="euler",
        sampling_steps=2,
        seeds=tuple(range(CANDIDATES)),
        prompt=condition.prompt,
        fps=float(FPS),
        frames=len(truth),
        latent_frames=9,
        buttons=tuple(tuple(int(v) for v in row) for row in condition.held_buttons),
        action_bin_edges=tuple((4 * i, 4 * i + 4) for i in range(len(condition.held_buttons) // 4)),
        mechanics_class=condition.mechanics_class,
    )
    latents = [torch.zeros(1, 9, 1, 1, dtype=torch.bfloat16)] * CANDIDATES
    return store.write(record, truth[0], latents, videos, truth)


def write_groups(path: Path, count: int, *, rendered: int = 40, seed: int = 3) -> Path:
    """A sealed ``groups/`` directory of `count` groups with different requests."""
    conditions = draw_conditions(min(rendered, count), seed)
    with OutputDirectory.open(
        path,
        schema="groups",
        version=layout.SCHEMAS["groups"],
        command="rollout",
        config=RolloutWorld(),
        inputs={},
        resume=False,
        overwrite=False,
    ) as output:
        store = GroupStore(output.path)
        first = [write_group(store, condition, f"g{number:05d}") for number, condition in enumerate(conditions)]
        for number in range(len(first), count):
            _copy(store, first[number % len(first)], f"g{number:05d}", number)
        output.seal()
    return path


def _copy(store: GroupStore, group: StoredGroup, group_id: str, number: int) -> None:
    """The same files under another id; the text gets a remark that the game does not read."""
    folder = store.folder(group_id)
    folder.mkdir()
    for name in group.files:
        try:
            os.link(group.folder / name, folder / name)
        except OSError:
            shutil.copyfile(group.folder / name, folder / name)
    record = replace(group.record, group_id=group_id, prompt=f"{group.record.prompt} Take {number}.")
    value = json.loads(pretty_json({"version": GROUP_VERSION, **asdict(record), "files": group.files}))
    (folder / layout.GROUP).write_text(pretty_json(value), encoding="utf-8")
