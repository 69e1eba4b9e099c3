"""Attempts at paid requests: what is recorded before one is sent, after it, and both together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AttemptState = Literal["sent", "answered", "rejected", "in_doubt"]


@dataclass(frozen=True)
class Intent:
    """What is about to be sent.

    Args:
        key: content hash of the request: equal requests are paid once.
        images: sha256 of each picture, in the order of the request.
        purpose: `score` or `probe`.
        estimated_input_tokens: for the price of an attempt that stays in doubt.
    """

    key: str
    group_id: str
    judge_id: str
    protocol_sha256: str
    model: str
    base_url: str
    images: tuple[str, ...]
    purpose: str
    estimated_input_tokens: int


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended.

    Args:
        reason: why there are no scores: a parser's code, an HTTP status, what broke the connection.
        cost: in the price table's currency; None without a price, 0 when certainly not billed.
    """

    state: AttemptState
    reason: str | None = None
    http_status: int | None = None
    latency_seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    answered_model: str | None = None


@dataclass(frozen=True)
class Attempt:
    """One row of the store."""

    request_id: str
    key: str
    attempt: int
    group_id: str
    judge_id: str
    protocol_sha256: str
    model: str
    base_url: str
    images: tuple[str, ...]
    purpose: str
    estimated_input_tokens: int
    session: str
    state: AttemptState
    reason: str | None
    http_status: int | None
    sent_utc: str
    ended_utc: str | None
    latency_seconds: float | None
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None
    answered_model: str | None


def request_id_of(key: str, attempt: int) -> str:
    """Name of an attempt: its key and its number, counted from 1."""
    return f"{key[:32]}-{attempt}"
