"""Features of the frozen vision tower: pictures of one size at a time, cached on disk by picture hash.

Shapes: N pictures a call, P patches, D width, T visual tokens of a picture, W width of the language model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stateplay_rl.errors import CorruptionError
from stateplay_rl.reward_model.captured import Captured, WeightsWatch
from stateplay_rl.reward_model.fused import rotate_
from stateplay_rl.reward_model.payload import ImagePart
from stateplay_rl.reward_model.pictures import Grid, PictureReader
from stateplay_rl.stores import atomic

PICTURES_PER_CALL = 8
READERS = 4
"""Threads that decode pictures: they keep ahead of a GPU; more would keep the interpreter's lock from the one that
launches its work."""


@dataclass(frozen=True)
class Geometry:
    """What the tower's forward needs of a picture size, made once.

    Args:
        places: learned embeddings of the patches' places, [P, D].
        rotation: cosine and sine of the patches' places, [P, width of a head].
    """

    places: Tensor
    rotation: tuple[Tensor, Tensor]


def tower_geometry(tower: Any, grid: Grid) -> Geometry:
    """Positions of the patches of one picture size, as the class computes them."""
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

    merge = tower.config.spatial_merge_size
    grid_thw = torch.tensor([[1, grid.rows, grid.columns]], device=tower.pos_embed.weight.device)
    index, weight = get_vision_interpolation_indices_and_weights(
        grid_thw,
        num_grid_per_side=tower.num_grid_per_side,
        mode=tower.interpolation_mode,
        align_corners=tower.interpolation_align_corners,
        spatial_merge_size=merge,
        kwargs={},
    )
    places = get_vision_position_ids(grid_thw, merge, kwargs={})
    embeddings_PD = (tower.pos_embed(index) * weight[:, :, None]).sum(1)
    return Geometry(embeddings_PD, tower.rotary_pos_emb(tower.pos_embed.weight, places))


def tower_features(tower: Any, patches_NPD: Tensor, geometry: Geometry, *, fused: bool = False) -> Tensor:
    """The class's own forward for N pictures of one size, attention batched instead of one call a picture.

    Args:
        tower: `Qwen3_5VisionModel`.
        patches_NPD: patches in the tower's dtype.
        geometry: of the size that all N share.
        fused: rotary positions by a Triton kernel, without gradient.

    Returns:
        [N, T, W].
    """
    # In the tower's own dtype: autocast would let norms write float32, which the products then round back.
    with torch.autocast(patches_NPD.device.type, enabled=False):
        return _tower_features(tower, patches_NPD, geometry, fused)


def _tower_features(tower: Any, patches_NPD: Tensor, geometry: Geometry, fused: bool) -> Tensor:
    from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb_vision

    count = len(patches_NPD)
    # A convolution over one patch is a product; as a convolution it is many times slower in half precision.
    embed = tower.patch_embed.proj
    hidden = F.linear(patches_NPD, embed.weight.flatten(1), embed.bias) + geometry.places.to(patches_NPD.dtype)
    for block in tower.blocks:
        attention = block.attn
        mixed = attention.qkv(block.norm1(hidden))
        if fused:
            rotate_(mixed, geometry.rotation, attention.num_heads)
        q, k, v = mixed.unflatten(-1, (3, attention.num_heads, -1)).unbind(2)
        if not fused:
            q, k = apply_rotary_pos_emb_vision(q, k, *geometry.rotation)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, scale=attention.scaling)
        hidden = hidden + attention.proj(seen.transpose(1, 2).flatten(2))
        hidden = hidden + block.mlp(block.norm2(hidden))
    merged: Tensor = tower.merger(hidden.flatten(0, 1))
    return merged.reshape(count, -1, merged.shape[-1])


class VisionFeatures:
    """Features by picture hash: from memory of this group, from disk, or from the tower.

    A call always holds the same number of pictures (the last one is filled up), so that a picture's features do not
    depend on what stood beside it.

    Args:
        model: the conditional-generation model.
        pictures: how bytes become patches.
        identity: hash of the tower's weights and the reader's settings: another tower, another cache.
        cache: folder of cached features; None computes them every time.
        fused: rotary positions by a Triton kernel.
        captured: a call of the tower is one CUDA graph for each size of picture, made anew when weights were moved.
    """

    def __init__(
        self,
        model: Any,
        pictures: PictureReader,
        identity: str,
        cache: Path | None = None,
        *,
        fused: bool = False,
        captured: bool = False,
    ) -> None:
        self._tower = model.model.visual
        self._pictures, self._fused = pictures, fused
        self._calls: dict[Grid, Callable[[Tensor], Tensor]] = {}
        self._captured = captured
        self._watch = WeightsWatch(self._tower)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="pictures")
        self._pixels: dict[Grid, Tensor] = {}
        self._cache = None if cache is None else cache / identity[:16]

    @torch.no_grad()
    def __call__(self, images: Sequence[ImagePart]) -> list[Tensor]:
        """[T, W] of every picture, in order, on the tower's device."""
        if self._captured and self._watch.changed():
            self._calls.clear()
        if self._device.type == "cuda":
            # Pixels of the call before may still be on their way from the memory that is filled now.
            torch.cuda.current_stream(self._device).synchronize()
        found: dict[str, Tensor] = {}
        waiting: dict[Grid, list[ImagePart]] = {}
        for image in images:
            if image.sha256 in found or any(image.sha256 == w.sha256 for w in waiting.get(self._grid(image), [])):
                continue
            cached = self._read(image.sha256)
            if cached is None:
                waiting.setdefault(self._grid(image), []).append(image)
            else:
                found[image.sha256] = cached
        for grid, group in waiting.items():
            found |= self._computed(group, grid)
        return [found[image.sha256] for image in images]

    def _grid(self, image: ImagePart) -> Grid:
        return self._pictures.grid(image.jpeg)

    @property
    def _device(self) -> torch.device:
        return torch.device(self._tower.patch_embed.proj.weight.device)

    def _computed(self, images: Sequence[ImagePart], grid: Grid) -> dict[str, Tensor]:
        """Features of pictures of one size; the threads read on while the tower computes."""
        pixels_NHWC = self._memory(grid, len(images))
        reading = [
            self._readers.submit(self._decode, image, place)
            for image, place in zip(images, pixels_NHWC.numpy(), strict=False)
        ]
        found: dict[str, Tensor] = {}
        try:
            for start in range(0, len(images), PICTURES_PER_CALL):
                some = images[start : start + PICTURES_PER_CALL]
                for one in reading[start : start + len(some)]:
                    one.result()
                features = self._call(grid)(pixels_NHWC[start : start + PICTURES_PER_CALL])
                found |= {image.sha256: features[i].clone() for i, image in enumerate(some)}
        finally:
            # After an error nobody may write any more to memory that the next call fills.
            for one in reading:
                one.cancel()
            wait(reading)
        for sha256, feature in found.items():
            self._write(sha256, feature)
        return found

    def _decode(self, image: ImagePart, place_HWC: np.ndarray) -> None:
        place_HWC[...] = self._pictures.pixels(image.jpeg)

    def _memory(self, grid: Grid, count: int) -> Tensor:
        """Host memory for so many pictures, bytes [N, height, width, 3], N whole calls; zero behind them."""
        rows = -(-count // PICTURES_PER_CALL) * PICTURES_PER_CALL
        if grid not in self._pixels or len(self._pixels[grid]) < rows:
            shape = (rows, *self._pictures.size_of(grid), 3)
            self._pixels[grid] = torch.empty(shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        found = self._pixels[grid][:rows]
        found[count:] = 0
        return found

    def _call(self, grid: Grid) -> Callable[[Tensor], Tensor]:
        """Pixels [N, height, width, 3] of one size to features [N, T, W]."""
        if grid in self._calls:
            return self._calls[grid]
        weight = self._tower.patch_embed.proj.weight
        geometry = tower_geometry(self._tower, grid)

        def features(pixels_NHWC: Tensor) -> Tensor:
            patches = self._pictures.patches(pixels_NHWC.to(weight.device)).to(weight.dtype)
            return tower_features(self._tower, patches, geometry, fused=self._fused)

        call: Callable[[Tensor], Tensor] = features
        if self._captured:
            call = Captured(features, self._pixels[grid][:PICTURES_PER_CALL].to(weight.device))
        self._calls[grid] = call
        return call

    def _file(self, sha256: str) -> Path | None:
        return None if self._cache is None else self._cache / sha256[:2] / f"{sha256}.safetensors"

    def _read(self, sha256: str) -> Tensor | None:
        from safetensors import SafetensorError
        from safetensors.torch import load

        file = self._file(sha256)
        if file is None or not file.is_file():
            return None
        try:
            feature: Tensor = load(file.read_bytes())["features"]
        except (OSError, SafetensorError, KeyError) as error:
            raise CorruptionError(f"{file} is damaged: {error}", "remove that file: it is made again") from error
        return feature.to(self._tower.patch_embed.proj.weight.device)

    def _write(self, sha256: str, feature: Tensor) -> None:
        from safetensors.torch import save

        file = self._file(sha256)
        if file is not None and not os.path.exists(file):
            atomic.write_bytes(file, save({"features": feature.cpu().contiguous()}))
