"""From JPEG bytes to the vision tower's patches, without torchvision.

Shapes: P patches of a picture, D values of a patch (2 x 3 x patch x patch: the picture is its own second frame).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores.foreign import parse_json
from stateplay_rl.stores.pictures import opened_picture

STORED = "a stored picture"
SETTINGS = "preprocessor_config.json"
_DEFAULT_SIZE = {"shortest_edge": 65536, "longest_edge": 16777216}


@dataclass(frozen=True)
class Grid:
    """Patches of one picture, rows and columns."""

    rows: int
    columns: int

    def tokens(self, merge: int) -> int:
        """Visual tokens: merge x merge patches become one."""
        return self.rows * self.columns // merge**2


class PictureReader:
    """Reads pictures as the checkpoint's settings say, always with the same (PIL) code.

    The arithmetic is that of transformers' `Qwen2VLImageProcessorPil` (tested bit for bit). It is not called: which
    processor transformers chooses depends on what is installed, and this one takes 26 ms for a picture of 832 x 480.

    Args:
        patch: pixels of a patch's side.
        merge: patches of a visual token's side.
        temporal: frames of a patch; the picture is repeated.
        size: smallest and largest number of pixels (`shortest_edge`, `longest_edge`).
    """

    def __init__(self, patch: int, merge: int, temporal: int, size: dict[str, int]) -> None:
        self.patch, self.merge, self.temporal, self.size = patch, merge, temporal, dict(size)
        # Rescaled in float64, normalised in float32, mean and deviation 0.5: as the processor rounds.
        scaled = (np.arange(256, dtype=np.float64) * (1 / 255)).astype(np.float32)
        self._values = torch.from_numpy((scaled - np.float32(0.5)) / np.float32(0.5))
        self._values_on: dict[torch.device, Tensor] = {}

    @classmethod
    def load(cls, folder: Path, vision_config: Any) -> PictureReader:
        """Settings of a model folder; its patch sizes must be those of the model.

        Raises:
            InputError, CorruptionError: settings that do not fit or cannot be read.
        """
        file = folder / SETTINGS
        size = dict(_DEFAULT_SIZE)
        if file.is_file():
            try:
                settings = parse_json(file.read_bytes())
                size |= {name: int(settings["size"][name]) for name in size}
                found = (int(settings["patch_size"]), int(settings["merge_size"]))
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptionError(f"{file} is damaged ({error!r})", "restore the checkpoint's file") from error
            if found != (vision_config.patch_size, vision_config.spatial_merge_size):
                raise InputError(f"{file}: patch and merge size {found} are not the model's", "use one checkpoint")
        patch, merge = int(vision_config.patch_size), int(vision_config.spatial_merge_size)
        return cls(patch, merge, int(vision_config.temporal_patch_size), size)

    def grid(self, jpeg: bytes) -> Grid:
        """Patches of a picture, from its header alone."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        with opened_picture(jpeg, STORED, ("JPEG",)) as picture:
            width, height = picture.size
        factor = self.patch * self.merge
        rows, columns = smart_resize(
            height,
            width,
            factor=factor,
            min_pixels=self.size["shortest_edge"],
            max_pixels=self.size["longest_edge"],
        )
        return Grid(rows // self.patch, columns // self.patch)

    def tokens(self, jpeg: bytes) -> int:
        """Visual tokens of a picture."""
        return self.grid(jpeg).tokens(self.merge)

    def size_of(self, grid: Grid) -> tuple[int, int]:
        """Height and width in pixels."""
        return grid.rows * self.patch, grid.columns * self.patch

    def pixels(self, jpeg: bytes) -> np.ndarray:
        """Bytes [height, width, 3] of one picture, resized (bicubic) to whole visual tokens where it must be.

        Raises:
            CorruptionError: the bytes are no picture.
        """
        height, width = self.size_of(self.grid(jpeg))
        with opened_picture(jpeg, STORED, ("JPEG",)) as picture:
            plain = picture.convert("RGB")
        if plain.size != (width, height):
            plain = plain.resize((width, height), Image.Resampling.BICUBIC)
        return np.asarray(plain)

    def patches(self, pixels_NHWC: Tensor) -> Tensor:
        """Float32 [N, P, D] of pictures of one size, values -1..1, on their device.

        Bit for bit what the checkpoint's own image processor makes of them, at a tenth of its time.
        """
        count, height, width, channels = pixels_NHWC.shape
        merge, patch = self.merge, self.patch
        shape = (count, height // patch // merge, merge, patch, width // patch // merge, merge, patch, channels)
        # Of every 2 x 2 patches that become one token: rows, columns; then channels, frames, rows and columns inside.
        device = pixels_NHWC.device
        if device not in self._values_on:
            self._values_on[device] = self._values.to(device)
        patched = self._values_on[device][pixels_NHWC.long()].reshape(shape).permute(0, 1, 4, 2, 5, 7, 3, 6)
        frames = patched[:, :, :, :, :, :, None].expand(*patched.shape[:6], self.temporal, *patched.shape[6:])
        return frames.reshape(count, height // patch * (width // patch), -1)
