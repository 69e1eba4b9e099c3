"""Fixtures: worlds of the stand-in checkout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stateplay_rl.worlds.load import load_world
from stateplay_rl.worlds.stateplay.world import CheckoutWorld
from stateplay_rl.worlds.world_files import resolve_world
from tests.worlds.stateplay.standin_world import write_checkout_world


@pytest.fixture
def load_standin(tmp_path: Path) -> Callable[..., CheckoutWorld]:
    """Load a fresh stand-in world; keyword arguments as `write_checkout_world`."""
    count = 0

    def load(**changes: object) -> CheckoutWorld:
        nonlocal count
        count += 1
        world = load_world(resolve_world(str(write_checkout_world(tmp_path / f"world{count}", **changes))))
        assert isinstance(world, CheckoutWorld)
        return world

    return load
