"""A stored group with videos, small or of real size, for the tests of payloads and requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from stateplay_rl.stores.groups import GroupRecord, GroupStore, StoredGroup

PROMPT = 'NPC: Active_Behavior(Jab: a "quick" punch), Strategy(Rushdown: <b>walks in</b>)'


def shaded_video(shade: int, frames: int, size: tuple[int, int]) -> np.ndarray:
    """Frames whose brightness tells candidate and time."""
    height, width = size
    ramp = np.linspace(0, 20, frames).astype(np.uint8)[:, None, None, None]
    return np.broadcast_to(np.uint8(shade) + ramp, (frames, height, width, 3)).copy()


def stored(
    root: Path, *, group_id: str = "group-7f", frames: int = 33, size: tuple[int, int] = (32, 48), **changes: Any
) -> StoredGroup:
    """Four candidates with shades 40, 80, 120, 160; the reference has 220, the first frame 10."""
    rows = [(0,) * 11 for _ in range(frames)]
    for row in range(4, min(8, frames)):
        rows[row] = (0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0)
    values: dict[str, Any] = {
        "group_id": group_id,
        "condition_id": "cond-3c",
        "batch": 0,
        "policy_sha256": "0" * 64,
        "world_sha256": "1" * 64,
        "sampler": "euler",
        "sampling_steps": 2,
        "seeds": (71, 72, 73, 74),
        "prompt": PROMPT,
        "fps": 20.0,
        "frames": frames,
        "latent_frames": 9,
        "buttons": tuple(rows),
        "action_bin_edges": tuple((4 * i, 4 * i + 4) for i in range(frames // 4)),
        "mechanics_class": "macro_success",
    }
    has_reference = changes.pop("has_reference", True)
    record = GroupRecord(**{**values, **changes})
    videos = [shaded_video(40 * (k + 1), frames, size) for k in range(4)]
    first = np.full((*size, 3), 10, np.uint8)
    latents = [torch.zeros(1, 2, 1, 1, dtype=torch.bfloat16)] * 4
    reference = shaded_video(220, frames, size) if has_reference else None
    return GroupStore(root).write(record, first, latents, videos, reference)
