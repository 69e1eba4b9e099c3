"""Settings of `sprl build-conditions`: what counts as a good clip, and how the pool is split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from stateplay_rl.config.base import FrozenConfig

Preset = Literal["stateplay", "arena"]


class ClipRules(FrozenConfig):
    """What a clip must look like to be eligible; frames and rows are counted, sizes are in pixels."""

    frame_width: int = Field(832, ge=16, description="Width of the first frame as the model gets it.")
    frame_height: int = Field(480, ge=16, description="Height of the first frame as the model gets it.")
    fps: float = Field(20.0, gt=0, description="The one frame rate that is accepted.")
    action_window: int = Field(10, ge=1, description="Rows over which a press in row 0 is held.")
    temporal_factor: int = Field(4, ge=1, description="Frames per latent slot after the first.")
    min_latent_frames: int = Field(2, ge=2, description="Shorter clips hold no transition to learn from.")
    max_frames: int = Field(101, ge=2, description="Longer clips are rejected: the model never saw that length.")
    max_picture_pixels: int = Field(4096 * 2304, ge=256, description="Larger pictures are not decoded.")
    max_action_file_bytes: int = Field(4 * 2**20, ge=1024, description="Larger action files are not opened.")
    max_action_rows: int = Field(2000, ge=2, description="Action tables with more rows are not read.")
    max_action_columns: int = Field(256, ge=11, description="Action tables with more columns are not read.")
    max_prompt_characters: int = Field(20_000, ge=1, description="Longer prompts are rejected.")
    known_classes: tuple[str, ...] = Field(
        ("normal", "macro_success", "macro_fail", "result_win", "result_lose"),
        description="Mechanics classes that raise no warning (lower case).",
    )


class Selection(FrozenConfig):
    """Which rows of the source are examined."""

    limit: int | None = Field(None, ge=1, description="Examine at most so many rows, balanced as the source is.")
    classes: tuple[str, ...] = Field((), description="Examine these mechanics classes only; empty = all.")
    sample_per_class: int | None = Field(None, ge=1, description="Examine at most so many rows of each class.")


class ClusterThresholds(FrozenConfig):
    """Two clips join if the pictures look alike and (the states are adjacent or the buttons near-equal)."""

    hash_bits: int = Field(ge=0, le=64, description="Differing bits of the 64-bit difference hash.")
    pixel_levels: float = Field(ge=0, description="RMS difference of the thumbnails, in 1/64 of full scale.")
    timer: int = Field(ge=0, description="Difference of the round timer in the first row, game seconds.")
    bars: int = Field(ge=0, description="Largest difference of an HP or meter value in the first row.")
    action_share: float = Field(ge=0, le=1, description="Share of (window, button) entries that differ.")


class ClusterRules(FrozenConfig):
    """Thresholds from the most cautious to the strictest, and how large a cluster may be."""

    largest_share: float = Field(0.05, gt=0, le=1, description="A larger cluster tightens the thresholds.")
    largest_always_allowed: int = Field(10, ge=1, description="Clusters up to this size never count as too large.")
    levels: tuple[ClusterThresholds, ...] = Field(
        (
            ClusterThresholds(hash_bits=12, pixel_levels=5.0, timer=8, bars=32, action_share=0.05),
            ClusterThresholds(hash_bits=8, pixel_levels=3.5, timer=5, bars=16, action_share=0.03),
            ClusterThresholds(hash_bits=5, pixel_levels=2.0, timer=3, bars=8, action_share=0.01),
            ClusterThresholds(hash_bits=2, pixel_levels=1.0, timer=1, bars=4, action_share=0.0),
        ),
        min_length=1,
        description="Tried in this order until the largest cluster is small enough.",
    )


class SplitRules(FrozenConfig):
    """Held-out pool, student splits and order."""

    heldout: int = Field(200, ge=0, description="Conditions that no training ever sees (whole clusters).")
    heldout_largest_share: float = Field(
        0.5, ge=0, lt=1, description="Upper bound on their share of all, and of each class."
    )
    student_shares: tuple[float, float, float] = Field(
        (0.8, 0.1, 0.1), description="Train, validation, test share of the `pass` pool."
    )
    seed: int = Field(0, ge=0, description="Seed of selection, pool, splits and order.")
    stage_a_conditions: int = Field(2000, ge=0, description="Size of stage A; stage C gets the rest of `pass`.")


# What differs between the two worlds; a preset fills in what the config does not state.
PRESETS: Mapping[Preset, Mapping[str, int]] = {
    "stateplay": {"frame_width": 832, "frame_height": 480, "action_window": 10},
    "arena": {"frame_width": 96, "frame_height": 64, "action_window": 4},
}


class ConditionsConfig(FrozenConfig):
    """Everything that decides the content of a `conditions/` directory."""

    preset: Preset = Field("stateplay", description="World whose picture size and action window are the defaults.")
    clip: ClipRules = ClipRules()
    hud: str = Field(
        "auto",
        min_length=1,
        description="HUD that first frames are read with and compared to the state columns: auto (the preset's), none, "
        "a packaged game, or a profile file",
    )
    select: Selection = Selection()
    clusters: ClusterRules = ClusterRules()
    split: SplitRules = SplitRules()

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("preset", "stateplay") not in PRESETS:
            return values  # field validation says what is wrong
        clip = values.get("clip", {})
        if not isinstance(clip, dict):
            return values
        return {**values, "clip": {**PRESETS[values.get("preset", "stateplay")], **clip}}
