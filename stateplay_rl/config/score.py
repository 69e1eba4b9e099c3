"""Settings of a judge and of `sprl score`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from stateplay_rl.config.base import FrozenConfig

BUILT_IN_JUDGES = ("openai", "student", "referee", "replay", "mix")
"""Judges that are chosen by a plain name; anything else must be a plug-in, `package.module:Class`."""


class SingleJudgeConfig(FrozenConfig):
    """One judge: its name and what that judge needs."""

    name: str = Field(
        default="openai",
        description="`openai`, `student`, `referee` (arena), `replay`, `mix`, or `package.module:Class`",
    )
    scores: Path | None = Field(default=None, description="`replay`: the scores/ directory that answers")
    options: dict[str, Any] = Field(default={}, description="plug-in: keyword arguments of its class")
    reward_model: Path | None = Field(default=None, description="`student`: reward_model/ of `sprl train-rm`")
    student_base: str | None = Field(
        default=None, description="`student`: where its base model lies now; none: as recorded"
    )
    student_device: str | None = Field(default=None, description="`student`: cpu, cuda or cuda:N; none: a GPU if any")
    student_waits_on_host: bool = Field(
        default=False, description="`student`: between groups its weights leave the card (pinned host memory)"
    )

    @model_validator(mode="after")
    def _settings_fit_the_judge(self) -> Self:
        if (self.name == "replay") != (self.scores is not None):
            raise ValueError("`scores` belongs to the judge `replay`, which needs it")
        if (self.name == "student") != (self.reward_model is not None):
            raise ValueError("`reward_model` belongs to the judge `student`, which needs it")
        if self.name != "student" and (self.student_base or self.student_device or self.student_waits_on_host):
            raise ValueError(f"`student_...` settings belong to the judge `student`; the judge is {self.name!r}")
        if self.options and self.name in BUILT_IN_JUDGES:
            raise ValueError(f"`options` belongs to plug-ins; the judge is {self.name!r}")
        return self


class MixPartConfig(SingleJudgeConfig):
    """One part of a mix: its judge, and its share of the total."""

    weight: float = Field(gt=0, description="relative weight; the share is weight / sum of weights")

    @model_validator(mode="after")
    def _no_nested_mix(self) -> Self:
        if self.name == "mix":
            raise ValueError("a mix cannot hold another mix: list all parts in one")
        return self


class JudgeConfig(SingleJudgeConfig):
    """Which judge scores a group; the same schema in `score` and in `train-nft`."""

    parts: dict[str, MixPartConfig] = Field(default={}, description="`mix`: named judges with their weights")

    @model_validator(mode="after")
    def _parts_fit_the_mix(self) -> Self:
        if (self.name == "mix") != bool(self.parts):
            raise ValueError("`parts` belongs to the judge `mix`, which needs at least one part")
        return self


class ScoreConfig(FrozenConfig):
    """Settings of one `sprl score` run."""

    judge: JudgeConfig = JudgeConfig()
    limit: int | None = Field(default=None, ge=1, description="only the first N groups, by group id")
