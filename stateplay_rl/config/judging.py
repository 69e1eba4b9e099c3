"""Settings of the judge `openai`: what it is shown, how it is asked, what it may cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from stateplay_rl.config.base import FrozenConfig

EXAMPLE_IMAGES = 3
FULL_FRAMES = 24
MOST_IN_FLIGHT = 30
DEFAULT_MODEL = "gpt-6.1-sol"
DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


def _plain_url(value: str) -> str:
    """A URL without user, password or query: this text is written to config.yaml."""
    try:
        url = urlsplit(value)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable, url = False, urlsplit("")
    if not usable:
        raise ValueError("must be an http(s) URL such as https://host/v1")
    if url.username or url.password or url.query or url.fragment:
        raise ValueError("must hold no user, password or query: keys come from the environment only")
    return value.rstrip("/")


def _variable_name(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("must be the NAME of an environment variable, never the key itself")
    return value


BaseUrl = Annotated[str, AfterValidator(_plain_url)]
KeyVariable = Annotated[str, AfterValidator(_variable_name)]


class ProtocolConfig(FrozenConfig):
    """What a judge sees of a group. Every value is part of the protocol hash: another value, another key."""

    mode: Literal["development", "production"] = Field(
        "development",
        description="`production` refuses missing example images, missing references and short videos",
    )
    include_prompt: bool = Field(
        True, description="show the condition's text; real prompts tell what happened in the clip: probe both"
    )
    frames: int = Field(FULL_FRAMES, ge=2, le=64, description="frames per video")
    longest_side: int = Field(832, ge=16, le=4096, description="larger pictures are scaled down to this, pixels")
    jpeg_quality: int = Field(90, ge=50, le=95)
    example_images: tuple[Path, ...] = Field(
        (), description="three pictures that explain the display; their hashes are part of the protocol"
    )
    shuffle_seed: int = Field(0, ge=0, description="seed of the candidates' order in each group")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if len(self.example_images) not in (0, EXAMPLE_IMAGES):
            raise ValueError(f"`example_images` holds {len(self.example_images)} files; give {EXAMPLE_IMAGES} or none")
        if self.mode == "production":
            if not self.example_images:
                raise ValueError(f"production mode needs {EXAMPLE_IMAGES} `example_images`")
            if self.frames != FULL_FRAMES:
                raise ValueError(f"production mode shows {FULL_FRAMES} frames per video")
        return self


class PriceConfig(FrozenConfig):
    """Price of a model, in any one currency, per million tokens."""

    input_per_million: float = Field(ge=0)
    output_per_million: float = Field(ge=0)


class RequestsConfig(FrozenConfig):
    """How requests are sent, repeated and limited. None of this changes what a score means."""

    folder: Path | None = Field(
        None, description="request store; none: `requests` below RL_RUN_ROOT, or beside the output"
    )
    in_flight: int = Field(28, ge=1, le=MOST_IN_FLIGHT, description="requests at the endpoint at one time")
    builders: int = Field(2, ge=1, le=64, description="payloads that are built at one time")
    connect_seconds: float = Field(20.0, gt=0, description="longest wait for a connection")
    read_seconds: float = Field(300.0, gt=0, description="longest wait for the next bytes of an answer")
    request_seconds: float = Field(900.0, gt=0, description="longest time of one whole request")
    backoff_first_seconds: float = Field(1.0, gt=0, description="first wait after a refused request; then doubled")
    backoff_most_seconds: float = Field(60.0, gt=0, description="longest wait that is not asked for by the server")
    tries_per_group: int = Field(
        8, ge=1, description="refused requests of one group before it fails, while others are answered"
    )
    first_answer_seconds: float = Field(
        120.0, gt=0, description="give up after this long when the endpoint has never answered"
    )
    outage_seconds: float = Field(
        172_800.0, gt=0, description="give up after this long without any answer, once it has answered"
    )
    doubts_in_a_row: int = Field(
        56, ge=1, description="stop after so many requests in doubt with no answer between them: each may be paid"
    )
    unread_in_a_row: int = Field(
        112, ge=1, description="stop after so many answers that cannot be read with no good one between them"
    )
    finish_seconds: float = Field(60.0, gt=0, description="Ctrl-C waits this long for requests in flight")
    max_requests: int | None = Field(None, ge=0, description="stop before more requests than this may have been billed")
    max_cost: float | None = Field(None, ge=0, description="stop before this much may have been spent")
    prices: dict[str, PriceConfig] = Field({}, description="price table: model -> price")


class ApiConfig(FrozenConfig):
    """Fields of the request beside the messages; part of the protocol hash."""

    max_output_tokens: int = Field(4096, ge=64, description="longest answer; a cut answer is no answer")
    output_limit_field: Literal["max_completion_tokens", "max_tokens"] = Field(
        "max_completion_tokens", description="older compatible servers want `max_tokens`"
    )
    temperature: float | None = Field(None, ge=0, le=2, description="none: not sent")
    json_mode: bool = Field(False, description="ask for a JSON object by `response_format`")
