"""Small directories for the tests of the stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.stores.groups import GroupRecord
from stateplay_rl.stores.manifest import Manifest, OutputDirectory


class Inner(FrozenConfig):
    rate: float = 0.5


class Config(FrozenConfig):
    resume_may_change: ClassVar[frozenset[str]] = frozenset({"workers"})
    seed: int = 1
    workers: int = 1
    inner: Inner = Inner()


def open_out(out: Path, **changes: Any) -> OutputDirectory:
    arguments: dict[str, Any] = {
        "schema": "groups",
        "version": 1,
        "command": "rollout",
        "config": Config(),
        "inputs": {},
        "resume": False,
        "overwrite": False,
    }
    return OutputDirectory.open(out, **(arguments | changes))


def sealed(out: Path, text: str = "hello", **changes: Any) -> Manifest:
    directory = open_out(out, **changes)
    directory.write_text("data/a.txt", text)
    return directory.seal()


def group_record(group_id: str = "g-1", seeds: tuple[int, ...] = (7, 8), **changes: Any) -> GroupRecord:
    facts: dict[str, Any] = {
        "group_id": group_id,
        "condition_id": "c1",
        "batch": 0,
        "policy_sha256": "p" * 64,
        "world_sha256": "w" * 64,
        "sampler": "euler",
        "sampling_steps": 4,
        "seeds": seeds,
        "prompt": "SF3 Game. <b>é</b>",
        "fps": 20.0,
        "frames": 5,
        "latent_frames": 2,
        "buttons": ((0,) * 11, (1,) + (0,) * 10),
        "action_bin_edges": ((0, 1), (1, 2)),
        "mechanics_class": "normal",
    }
    return GroupRecord(**(facts | changes))


def pictures(count: int, seed: int = 0, height: int = 16, width: int = 32) -> np.ndarray:
    """Smooth moving pictures [T, h, w, 3] that a video codec keeps well."""
    ramp = np.add.outer(np.arange(height) * 4, np.arange(width) * 2)
    frames = np.stack([(ramp + 8 * t + 30 * seed) % 200 for t in range(count)]).astype(np.uint8)
    return np.repeat(frames[..., None], 3, axis=-1)


def latents(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 2, 2, 4, generator=generator).to(torch.bfloat16)
