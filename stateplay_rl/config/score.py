"""Settings of a judge and of `sprl score`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.config.judging import (
    DEFAULT_BASE_URL,
    DEFAULT_KEY_VARIABLE,
    DEFAULT_MODEL,
    ApiConfig,
    BaseUrl,
    KeyVariable,
    ProtocolConfig,
    RequestsConfig,
)

BUILT_IN_JUDGES = ("openai", "student", "referee", "replay", "mix")
"""Judges that are chosen by a plain name; anything else must be a plug-in, `package.module:Class`."""
OPENAI_FIELDS = ("model", "base_url", "api_key_env", "api", "requests")
"""Settings that only the judge `openai` has."""
HOW_NOT_WHAT = frozenset({"judge.base_url", "judge.api_key_env", "judge.requests"})
"""Settings of how a judge is asked: they may differ when a directory is resumed."""


class SingleJudgeConfig(FrozenConfig):
    """One judge: its name and what that judge needs."""

    name: str = Field(
        default="openai",
        description="`openai`, `student`, `referee` (arena), `replay`, `mix`, or `package.module:Class`",
    )
    scores: Path | None = Field(default=None, description="`replay`: the scores/ directory that answers")
    options: dict[str, Any] = Field(default={}, description="plug-in: keyword arguments of its class")
    model: str = Field(DEFAULT_MODEL, min_length=1, max_length=200, description="`openai`: the model asked for")
    base_url: BaseUrl = Field(DEFAULT_BASE_URL, description="`openai`: endpoint, up to and with /v1")
    api_key_env: KeyVariable = Field(
        DEFAULT_KEY_VARIABLE,
        description="`openai`: environment variable that holds the key; none is needed on loopback",
    )
    api: ApiConfig = ApiConfig()
    protocol: ProtocolConfig = ProtocolConfig()
    requests: RequestsConfig = RequestsConfig()
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
            raise ValueError("the judge `replay`, and no other, takes scores to repeat: --scores DIR")
        if (self.name == "student") != (self.reward_model is not None):
            raise ValueError("the judge `student`, and no other, takes what `sprl train-rm` wrote: --reward-model DIR")
        if self.name != "student" and (self.student_base or self.student_device or self.student_waits_on_host):
            raise ValueError(f"`student_...` settings belong to the judge `student`; the judge is {self.name!r}")
        if self.options and self.name in BUILT_IN_JUDGES:
            raise ValueError(f"`options` belongs to plug-ins; the judge is {self.name!r}")
        if self.name != "openai":
            for field in OPENAI_FIELDS:
                if getattr(self, field) != type(self).model_fields[field].default:
                    raise ValueError(f"`{field}` belongs to the judge `openai`; the judge is {self.name!r}")
        if self.requests.max_cost is not None and self.model not in self.requests.prices:
            raise ValueError(f"`requests.max_cost` needs the price of {self.model!r} in `requests.prices`")
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

    @property
    def paid(self) -> tuple[SingleJudgeConfig, ...]:
        """The judges in it whose requests cost money: each asks about every group."""
        return tuple(part for part in (self, *self.parts.values()) if part.name == "openai")


class ProbeConfig(FrozenConfig):
    """`sprl score --probe`: how a judge is tested before it is trusted."""

    enabled: bool = Field(False, description="test the judge instead of scoring the groups")
    groups: int = Field(8, ge=2, description="groups to probe, by group id")
    repeats: int = Field(3, ge=2, description="times that each group is shown in one and the same order")
    broken: bool = Field(True, description="plant broken videos: frozen, reversed, of another clip")
    other_prompt: bool = Field(True, description="show each group once with include_prompt the other way round")
    minimum_signal_to_noise: float = Field(1.0, gt=0, description="below this, `train-nft` warns at its start")


class ScoreConfig(FrozenConfig):
    """Settings of one `sprl score` run."""

    resume_may_change: ClassVar[frozenset[str]] = HOW_NOT_WHAT

    judge: JudgeConfig = JudgeConfig()
    limit: int | None = Field(default=None, ge=1, description="only the first N groups, by group id")
    probe: ProbeConfig = ProbeConfig()
