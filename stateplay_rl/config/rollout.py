"""Settings of `sprl rollout` and of the sampling inside `sprl train-nft`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from stateplay_rl.config.base import FrozenConfig

Mode = Literal["transition", "coupling", "joint", "full"]
"""Which parameters are trained: module B, the coupling LoRA, both, or everything (arena's own mode)."""


WAN_SHIFT = 5.0
"""Shift of the grid that the model was trained with."""


class SamplingConfig(FrozenConfig):
    """How candidates are drawn: the model's own Euler ODE on the shifted grid.

    Text and action guidance are 1 (off), as the model was trained; there is no setting for another value.
    """

    candidates: int = Field(4, ge=1, le=26, description="candidates per condition; one group")
    steps: int = Field(30, ge=1, le=1000, description="Euler steps")
    shift: float = Field(WAN_SHIFT, gt=0, description="shift of the sigma grid")
    candidates_per_call: int = Field(
        1, ge=1, description="candidates of one condition that are sampled together (memory against speed)"
    )

    latents: Literal["float32", "bfloat16"] = Field(
        "float32", description="latents between steps; bfloat16 is what the training repository's sampler keeps"
    )

    @property
    def sampler(self) -> str:
        """Name of the sampler as it stands in every record; another grid is another sampler."""
        name = "euler" if self.shift == WAN_SHIFT else f"euler-shift{self.shift:g}"
        return name if self.latents == "float32" else f"{name}-bf16"


class RolloutConfig(FrozenConfig):
    """Settings of one `sprl rollout` run."""

    world: str = Field("arena", description="`arena` or the path of a world file")
    pool: Literal["pass", "heldout"] = Field("pass", description="which conditions to draw from")
    limit: int | None = Field(None, ge=1, description="only the first N conditions in their stored order")
    skip: int = Field(0, ge=0, description="leave out the first N conditions, which an earlier batch consumed")
    batch: int = Field(0, ge=0, description="batch number of the noise; another number, other candidates")
    mode: Mode = Field(
        "transition", description="parameters that the policy's hash covers: the mode that will be trained"
    )
    seed: int = Field(0, ge=0, description="run seed of every noise draw")
    sampling: SamplingConfig = SamplingConfig()
    policy: Path | None = Field(
        None, description="exported policy (run/policy/<sha>.safetensors); none: the base weights"
    )
