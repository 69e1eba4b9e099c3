"""A small base model, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.reward_model.base_model import BaseModel
from tests.reward_model.small_groups import load_small_model, write_small_model


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture
def base(small_folder: Path) -> BaseModel:
    return load_small_model(small_folder)
