"""From JPEG bytes to the vision tower's patches, without torchvision.

Shapes: P patches of a picture, D values of a patch (2 x 3 x patch x patch: the picture is its own second frame).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    The class is named explicitly: transformers would choose by what is installed, and scores would follow.

    Args:
        patch: pixels of a patch's side.
        merge: patches of a visual token's side.
        size: smallest and largest number of pixels (`shortest_edge`, `longest_edge`).
    """

    def __init__(self, patch: int, merge: int, temporal: int, size: dict[str, int]) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.patch, self.merge, self.size = patch, merge, dict(size)
        self._processor: Any = Qwen2VLImageProcessorPil(
            patch_size=patch,
            temporal_patch_size=temporal,
            merge_size=merge,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
            size=dict(size),
        )

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

    def patches(self, jpeg: bytes) -> Tensor:
        """Float32 [P, D] of one picture, values -1..1.

        Raises:
            CorruptionError: the bytes are no picture.
        """
        with opened_picture(jpeg, STORED, ("JPEG",)) as picture:
            plain = picture.convert("RGB")
        found: Tensor = self._processor.preprocess([plain], return_tensors="pt")["pixel_values"]
        return found
