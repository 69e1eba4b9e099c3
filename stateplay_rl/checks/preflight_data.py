"""A sample of conditions against the clips that they were made from: frames, actions, bins, sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from stateplay_rl.checks.directory_facts import collect
from stateplay_rl.errors import SprlError
from stateplay_rl.stores.conditions import ConditionRecord, ConditionStore, hash_actions
from stateplay_rl.stores.hashing import hash_frames
from stateplay_rl.stores.video import decode_mp4
from stateplay_rl.worlds.base import WorldSpec
from stateplay_rl.worlds.preparation import action_bin_edges, prepare_first_frame

LARGEST_MEAN_DIFFERENCE = 3.0
"""Levels between the stored first frame and the clip's: decoders of other versions differ by one or two."""


def spread_sample(records: Sequence[ConditionRecord], count: int) -> list[ConditionRecord]:
    """`count` records, evenly over the order, always with the longest one: memory is decided there."""
    longest = max(records, key=lambda record: (record.frames, -record.order))
    step = max(len(records) // count, 1)
    others = [record for record in records[::step] if record is not longest]
    return [longest, *others[: count - 1]]


def check_sample(store: ConditionStore, records: Sequence[ConditionRecord], spec: WorldSpec) -> str:
    """First frame, actions, bins and clip of each record.

    Returns:
        What was looked at.

    Raises:
        CheckError: with the first few problems.
    """
    problems: list[str] = []
    clips = 0
    for record in records:
        try:
            problems += [f"condition {record.condition_id}: {text}" for text in _problems(store, record, spec)]
            clips += _has_clip(store, record)
        except SprlError as error:
            problems.append(f"condition {record.condition_id}: {error.what}")
    passed = f"{len(records)} conditions, {clips} clips decoded: frames, buttons and bins as recorded"
    return collect(problems, passed, "restore the clips and conditions, or build again: sprl build-conditions")


def _has_clip(store: ConditionStore, record: ConditionRecord) -> bool:
    return store.clip_path(record) is not None


def _problems(store: ConditionStore, record: ConditionRecord, spec: WorldSpec) -> list[str]:
    first = store.first_frame(record.condition_id)
    raw_RK, held_RK = store.raw_actions(record.condition_id), store.held_actions(record.condition_id)
    found = []
    if first.shape != (spec.frame_height, spec.frame_width, 3):
        found.append(f"first frame is {list(first.shape)}, the world wants {spec.frame_height}x{spec.frame_width}")
    if hash_frames(first) != record.first_frame_sha256:
        found.append("first frame is not the recorded one")
    if hash_actions(raw_RK) != record.actions_sha256:
        found.append("actions are not the recorded ones")
    if not set(np.unique(held_RK)) <= {0, 1}:
        found.append("held actions are not all 0 or 1")
    if (record.frames - 1) % spec.temporal_factor or (record.frames - 1) // spec.temporal_factor + 1 != (
        record.latent_frames
    ):
        found.append(f"{record.frames} frames do not make {record.latent_frames} latent slots")
    edges = tuple(tuple(pair) for pair in record.action_bin_edges)
    if edges != action_bin_edges(record.action_rows, record.latent_frames):
        found.append("action bins do not follow from rows and slots")
    return [*found, *_clip_problems(store, record, first, spec)]


def _clip_problems(store: ConditionStore, record: ConditionRecord, first: np.ndarray, spec: WorldSpec) -> list[str]:
    path = store.clip_path(record)
    if path is None:
        return []
    clip_ThwC = decode_mp4(path)
    if len(clip_ThwC) < record.frames:
        return [f"{path} has {len(clip_ThwC)} frames, {record.frames} are used"]
    prepared = prepare_first_frame(Image.fromarray(clip_ThwC[0]), spec.frame_width, spec.frame_height)
    if prepared.shape != first.shape:
        return []
    gap = float(np.abs(prepared.astype(np.float32) - first).mean())
    if gap > LARGEST_MEAN_DIFFERENCE:
        return [f"{path} begins with another picture than the stored first frame ({gap:.1f} levels on average)"]
    return []
