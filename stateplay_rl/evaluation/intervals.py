"""Counts that admit what could not be read: a lower bound with it counted wrong, an upper one with it left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Bounds:
    """How often something is right.

    Args:
        right: readable and right.
        wrong: readable and wrong.
        unreadable: could not be read.
    """

    right: int = 0
    wrong: int = 0
    unreadable: int = 0

    @property
    def total(self) -> int:
        return self.right + self.wrong + self.unreadable

    @property
    def low(self) -> float | None:
        """Share right with the unreadable counted wrong, 0..1; None if there is nothing."""
        return self.right / self.total if self.total else None

    @property
    def high(self) -> float | None:
        """Share right with the unreadable left out, 0..1; None if nothing could be read."""
        read = self.right + self.wrong
        return self.right / read if read else None

    @property
    def coverage(self) -> float | None:
        """Share that could be read, 0..1; None if there is nothing."""
        return (self.right + self.wrong) / self.total if self.total else None

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.right + other.right, self.wrong + other.wrong, self.unreadable + other.unreadable)

    def to_json(self) -> dict[str, float | int | None]:
        """Counts and bounds as plain JSON values."""
        return {**asdict(self), "low": self.low, "high": self.high, "coverage": self.coverage}


def bounds_of(outcomes: Iterable[bool | None]) -> Bounds:
    """Bounds over outcomes: True right, False wrong, None unreadable."""
    outcomes = list(outcomes)
    return Bounds(
        sum(outcome is True for outcome in outcomes),
        sum(outcome is False for outcome in outcomes),
        sum(outcome is None for outcome in outcomes),
    )


def points_of(parts: Iterable[Bounds]) -> tuple[float, float | None]:
    """Mean over the parts that say something, 0..100: with unreadable as wrong, and without it."""
    told = [part for part in parts if part.total]
    lows = [part.low for part in told if part.low is not None]
    highs = [part.high for part in told if part.high is not None]
    low = 100.0 * sum(lows) / len(lows) if lows else 0.0
    return low, 100.0 * sum(highs) / len(highs) if highs else None
