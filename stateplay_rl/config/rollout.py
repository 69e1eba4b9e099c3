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

Solver = Literal["euler", "ab2", "dpm2m", "unipc2", "unipc3"]
"""Rules of `nft/samplers.py`."""
Cache = Literal["none", "taylor", "firstblock"]


class SamplingConfig(FrozenConfig):
    """How candidates are drawn: the flow ODE on the model's own shifted grid; the public sampler's rule is Euler.

    Text and action guidance are 1 (off), as the model was trained; there is no setting for another value.
    """

    candidates: int = Field(4, ge=1, le=26, description="candidates per condition; one group")
    steps: int = Field(30, ge=1, le=1000, description="steps down the sigma grid")
    solver: Solver = Field("euler", description="rule of a step: euler, or one of a higher order (docs/samplers.md)")
    cache: Cache = Field(
        "none", description="taylor: extrapolate velocities on some steps; firstblock: skip blocks when little changes"
    )
    cache_every: int = Field(3, ge=2, description="taylor: one step of so many asks the model")
    cache_threshold: float = Field(
        0.1, gt=0, description="firstblock: relative change of the first block's effect from which all blocks run"
    )
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
        caches = {
            "none": "",
            "taylor": f"+taylor{self.cache_every}",
            "firstblock": f"+firstblock{self.cache_threshold:g}",
        }
        shift = "" if self.shift == WAN_SHIFT else f"-shift{self.shift:g}"
        return f"{self.solver}{caches[self.cache]}{shift}" + ("" if self.latents == "float32" else "-bf16")

    @property
    def taylor_every(self) -> int | None:
        """One step of so many is computed; None without the Taylor cache."""
        return self.cache_every if self.cache == "taylor" else None


def sampler_settings(name: str) -> dict[str, str]:
    """Settings that `--sampler SOLVER[+CACHE]` stands for; their values are checked with the config."""
    solver, plus, cache = name.partition("+")
    return {"sampling.solver": solver, "sampling.cache": cache if plus else "none"}


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
