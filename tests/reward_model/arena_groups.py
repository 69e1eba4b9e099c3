"""Stored groups of arena made from engine renderings: no world model is needed to test a reward model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from stateplay_rl.arena.dataset import CLEAR_CHANGE, ArenaCondition, class_sequence, draw_condition, render, simulate
from stateplay_rl.arena.state import FPS, FRAMES, Glitches
from stateplay_rl.stores.groups import GroupRecord, GroupStore, StoredGroup
from stateplay_rl.worlds.preparation import action_bin_edges

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
