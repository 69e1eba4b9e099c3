"""Vision features: those of the class, whatever stands beside a picture, and the same from the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stateplay_rl.errors import CorruptionError
from stateplay_rl.reward_model.base_model import BaseModel
from stateplay_rl.reward_model.payload import ImagePart
from stateplay_rl.reward_model.vision import VisionFeatures
from tests.reward_model.small_groups import picture

PICTURES = [picture(i, size=64) for i in range(11)] + [picture(20, size=32)]


def features(base: BaseModel, images: list[ImagePart], cache: Path | None = None) -> list[torch.Tensor]:
    return VisionFeatures(base.model, base.pictures, "0" * 64, cache)(images)


def test_they_are_the_features_of_the_class(base: BaseModel) -> None:
    read = base.pictures
    patches = torch.cat([read.patches(torch.tensor(read.pixels(image.jpeg)[None]))[0] for image in PICTURES])
    grids = [base.pictures.grid(image.jpeg) for image in PICTURES]
    grid_thw = torch.tensor([[1, grid.rows, grid.columns] for grid in grids])
    expected = base.model.model.get_image_features(patches, grid_thw).pooler_output
    for found, wanted in zip(features(base, PICTURES), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5)


def test_a_picture_does_not_depend_on_its_neighbours(base: BaseModel) -> None:
    alone = features(base, [PICTURES[9]])[0]
    assert torch.equal(alone, features(base, PICTURES)[9])
    assert torch.equal(alone, features(base, [PICTURES[9], PICTURES[2], PICTURES[9]])[2])


def test_the_cache_gives_the_same_and_is_used(base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = features(base, PICTURES, tmp_path)
    monkeypatch.setattr(base.pictures, "pixels", lambda jpeg: pytest.fail("a cached picture was read again"))
    second = features(base, PICTURES, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_damaged_cache_is_named(base: BaseModel, tmp_path: Path) -> None:
    features(base, PICTURES[:1], tmp_path)
    file = next(tmp_path.rglob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(CorruptionError, match=file.name):
        features(base, PICTURES[:1], tmp_path)
