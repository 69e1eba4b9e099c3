"""Patches and visual tokens of pictures."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.reward_model.base_model import BaseModel
from stateplay_rl.reward_model.pictures import SETTINGS, PictureReader
from tests.reward_model.small_groups import picture

REAL = PictureReader(16, 2, 2, {"shortest_edge": 65536, "longest_edge": 16777216})


def jpeg(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


def test_a_real_group_has_so_many_visual_tokens() -> None:
    """832 x 480 in 32-pixel squares: 26 x 15; 124 pictures make 48,360 of the 65,536 tokens."""
    assert REAL.tokens(jpeg(832, 480)) == 390
    assert 124 * 390 == 48_360


@pytest.mark.parametrize(("width", "height"), [(832, 480), (96, 64), (500, 333), (31, 900)])
def test_the_header_tells_the_patches(width: int, height: int) -> None:
    data = jpeg(width, height)
    grid = REAL.grid(data)
    patches = REAL.patches(torch.tensor(REAL.pixels(data)[None]))
    assert patches.shape == (1, grid.rows * grid.columns, 2 * 3 * 16 * 16)
    assert grid.tokens(2) * 4 == patches.shape[1]


@pytest.mark.parametrize(("width", "height"), [(832, 480), (500, 333), (31, 900)])
def test_they_are_the_processors_own_patches(width: int, height: int) -> None:
    """The checkpoint's image processor, which is not used for its time, bit for bit; resized sizes included."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    processor = Qwen2VLImageProcessorPil(
        patch_size=16, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3, size=REAL.size
    )
    expected = processor.preprocess([Image.open(buffer).convert("RGB")], return_tensors="pt")["pixel_values"]
    assert torch.equal(REAL.patches(torch.tensor(REAL.pixels(buffer.getvalue())[None]))[0], expected)


def test_patches_hold_the_picture_twice_and_scaled() -> None:
    image = picture(3, size=64)
    reader = PictureReader(16, 2, 2, {"shortest_edge": 1024, "longest_edge": 1 << 20})
    patches = reader.patches(torch.tensor(reader.pixels(image.jpeg)[None])).reshape(-1, 3, 2, 16, 16)
    assert torch.equal(patches[:, :, 0], patches[:, :, 1])
    pixels = np.asarray(Image.open(io.BytesIO(image.jpeg)).convert("RGB")).astype(np.float32)
    corner = torch.from_numpy(pixels[:16, :16]).permute(2, 0, 1) / 127.5 - 1.0
    torch.testing.assert_close(patches[0, :, 0], corner, rtol=0, atol=1e-5)


def test_broken_bytes_and_foreign_settings_are_refused(base: BaseModel, tmp_path: Path) -> None:
    with pytest.raises(CorruptionError):
        REAL.grid(b"no picture")
    with pytest.raises(CorruptionError):
        REAL.pixels(jpeg(96, 64)[:400])
    settings = json.loads((base.folder / SETTINGS).read_text())
    (tmp_path / SETTINGS).write_text(json.dumps({**settings, "patch_size": 14}))
    with pytest.raises(InputError, match="patch"):
        PictureReader.load(tmp_path, base.model.config.vision_config)
    (tmp_path / SETTINGS).write_text("{}")
    with pytest.raises(CorruptionError):
        PictureReader.load(tmp_path, base.model.config.vision_config)
