"""Fixtures: a complete arena world as files, with random numbers in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from stateplay_rl.checks.audit.expected import (
    COMPONENTS,
    TRANSFORMER,
    expected_tensors,
)
from tests.checks.audit.audit_world import FILES, Arrays, random_values, world_text


@pytest.fixture(scope="session")
def arena_arrays() -> Mapping[str, Arrays]:
    """Component -> name -> random values, as arena's files hold them. Copy before changing."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Arrays] = {component: {} for component in COMPONENTS}
    for tensor in expected_tensors("arena"):
        arrays[tensor.component][tensor.name] = random_values(tensor, rng)
    return arrays


@pytest.fixture
def write_world(tmp_path: Path, arena_arrays: Mapping[str, Arrays]) -> Callable[..., Path]:
    """Write a world's files and its world file; `change(component, arrays)` may edit them first."""

    def write(change: Callable[[str, Arrays], Any] | None = None, metadata: Mapping[str, str] | None = None) -> Path:
        folder = tmp_path / "world"
        folder.mkdir(exist_ok=True)
        for component, name in FILES.items():
            arrays = dict(arena_arrays[component])
            if change is not None:
                change(component, arrays)
            save_file(arrays, folder / name, dict(metadata) if metadata and component == TRANSFORMER else None)
        (folder / "text_tokenizer.json").write_text("{}", encoding="utf-8")
        (folder / "world.yaml").write_text(world_text("tiny"), encoding="utf-8")
        return folder

    return write
