"""`WorldConfig`: which weight files make a world, and how it is run.

A world file is this config as YAML. Its paths are relative to the file, so that a folder can be moved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from stateplay_rl.config.base import FrozenConfig

Preset = Literal["stateplay-5b", "arena"]


class WorldFiles(FrozenConfig):
    """Weight files of a world; paths relative to the world file, or absolute."""

    checkpoint: tuple[Path, ...] = Field(
        min_length=1,
        description="safetensors with transformer, latent-state modules and predictor, training key names; "
        "several files are shards",
    )
    transition_tokenizer: Path = Field(description="frozen stage-1 tokenizer (safetensors)")
    vae: Path = Field(description="VAE weights (safetensors)")
    text_encoder: Path = Field(description="UMT5 encoder weights (safetensors)")
    text_tokenizer: Path = Field(description="tokenizer.json, or the folder that holds it")

    @model_validator(mode="before")
    @classmethod
    def _one_checkpoint_may_be_a_plain_path(cls, values: object) -> object:
        if isinstance(values, dict) and isinstance(values.get("checkpoint"), (str, Path)):
            return {**values, "checkpoint": [values["checkpoint"]]}
        return values


class WorldConfig(FrozenConfig):
    """A world: backend, sizes, files, and how to compute."""

    name: str = Field(min_length=1, description="shown in records and reports")
    backend: Literal["native"] = Field(default="native", description="native = this package's own model")
    preset: Preset = Field(description="sizes: stateplay-5b or arena")
    files: WorldFiles
    key_map: dict[str, str] = Field(
        default={},
        description="their prefix -> our prefix, for latent modules of other names; * is a block index",
    )
    audit: Path | None = Field(
        default=None, description="audit-<stem>/ of the checkpoint; train-nft refuses a world without one"
    )
    fps: float = Field(default=20.0, gt=0, description="frames per second of the clips")
    frame_height: int = Field(default=480, gt=0, description="picture height in pixels")
    frame_width: int = Field(default=832, gt=0, description="picture width in pixels")
    compute_dtype: Literal["float32", "bfloat16"] = Field(
        default="bfloat16",
        description="dtype of frozen weights and activations; trained weights stay float32",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:<n>")
    gradient_checkpointing: bool = Field(
        default=True, description="recompute blocks in the backward pass: less memory, more time"
    )
