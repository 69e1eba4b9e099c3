"""Settings of `sprl report`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from stateplay_rl.config.base import FrozenConfig


class ReportConfig(FrozenConfig):
    """What goes into the page."""

    title: str = Field("", description="the page's title; empty: the names of the directories")
    embedded_groups: int = Field(
        24,
        ge=0,
        le=24,
        description="groups whose videos lie inside the page, the gallery's conditions included",
    )
    embedded_megabytes: float = Field(
        40.0, gt=0, le=40, description="upper limit of the page's size, MB; videos past it are linked"
    )
    gallery_conditions: int = Field(
        6, ge=0, description="held-out conditions of the before/after gallery, per run; 0 is off"
    )
    gallery_samples: int = Field(2, ge=1, description="samples of each condition shown on each side")
    frame_grid: int = Field(24, ge=0, description="first frames shown of a conditions directory")
    label_set: int = Field(
        0, ge=0, description="videos of a blind page for people, half of the tested policy, half of the base; 0 is off"
    )
    label_seed: int = Field(0, ge=0, description="seed of the choice and the order of that page")
    labels: tuple[Path, ...] = Field((), description="files that the blind page saved: people's scores, read back")
    label_key: Path | None = Field(None, description="key.json of that page; none: beside each file of labels")
    png: bool = Field(True, description="write a PNG file beside the page for each figure")
