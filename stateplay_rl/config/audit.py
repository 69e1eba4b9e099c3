"""Settings of `sprl audit-ckpt`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from stateplay_rl.config.base import FrozenConfig

GIBIBYTE = 2**30


class AuditConfig(FrozenConfig):
    """What is audited, against which world, and how deeply."""

    checkpoint: Path | None = Field(default=None, description="the file or folder; none: the packaged one of `world`")
    world: str | None = Field(
        default=None, description="`arena` or the path of a world file; none: inferred from shapes"
    )
    base: tuple[Path, ...] = Field((), description="files or folders of the base model (transformer, VAE, text)")
    tokenizer: Path | None = Field(default=None, description="transition tokenizer of the SFT run")
    training_config: Path | None = Field(
        default=None, description="config of the SFT run (YAML or JSON): states what no shape shows"
    )
    scan: bool = Field(default=False, description="read every tensor: NaN, Inf, all-zero tensors, rows of zeros")
    allow_init: bool = Field(
        default=False,
        description="accept parameters left at random initialisation; such an audit cannot be trained on",
    )
    hash_all: bool = Field(default=False, description="hash files of any size, whatever the verdict")
    hash_limit_bytes: int = Field(
        default=2 * GIBIBYTE,
        ge=0,
        description="larger files are hashed only when the verdict is `passed`, or with `scan` or `hash_all`",
    )
