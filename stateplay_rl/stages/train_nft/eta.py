"""How long a run will still take, in words; shown, never stored."""

from __future__ import annotations

import time

SECONDS_PER_MINUTE, SECONDS_PER_HOUR = 60.0, 3600.0


class TimeLeft:
    """Reckons with the mean time of the batches so far.

    Args:
        batches: batches that are left at the start.
    """

    def __init__(self, batches: int) -> None:
        self._left, self._done = batches, 0
        self._started = time.monotonic()

    def after_one(self) -> str:
        """Call after every batch; returns what is left."""
        self._done += 1
        each = (time.monotonic() - self._started) / self._done
        return f"{in_words(each * max(self._left - self._done, 0))} left"


def in_words(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h` or `2.1 days`."""
    if seconds < 2 * SECONDS_PER_MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * SECONDS_PER_HOUR:
        return f"{seconds / SECONDS_PER_MINUTE:.0f} min"
    hours = seconds / SECONDS_PER_HOUR
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
