"""How long to wait before a refused request is sent again, and when to stop trying."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from stateplay_rl.config.judging import RequestsConfig
from stateplay_rl.errors import OutsideError

_LARGEST_POWER = 30
TOLD_AFTER_SECONDS = 20.0
"""Without any answer for so long, people are told; shorter pauses are everyday life of an API."""


def wait_seconds(tries: int, asked: float | None, limits: RequestsConfig, draw: Callable[[], float]) -> float:
    """Wait before the next try: what the server asked for, else exponential; with jitter, so that thirty
    requests that were refused together do not come back together.

    Args:
        tries: refused tries so far, at least 1.
        asked: `Retry-After` in seconds, which is never cut short.
        draw: uniform in [0, 1).
    """
    if asked is not None:
        return asked + draw() * min(limits.backoff_first_seconds, 0.1 * asked + 0.05)
    longest: float = min(
        limits.backoff_most_seconds, limits.backoff_first_seconds * 2 ** min(tries - 1, _LARGEST_POWER)
    )
    return longest * (0.5 + 0.5 * draw())


class Patience:
    """Tells an outage of the endpoint from a request that it alone refuses; shared by all threads."""

    def __init__(self, limits: RequestsConfig) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._trouble_since: float | None = None
        self._last_refusal = ""
        self._random = random.Random()
        self._doubts = self._unread = 0
        self.answers = 0
        """Complete answers so far."""

    @property
    def trouble(self) -> str | None:
        """Why nothing has been answered for a while; None when the endpoint works, or has only just failed."""
        with self._lock:
            since, reason = self._trouble_since, self._last_refusal
        if since is None or time.monotonic() - since < TOLD_AFTER_SECONDS:
            return None
        return reason

    def answered(self, reason: str | None) -> None:
        """An answer came: the endpoint works.

        Args:
            reason: why it cannot be read; None for a good one.

        Raises:
            OutsideError: too many in a row cannot be read, and each of them is paid.
        """
        with self._lock:
            self.answers += 1
            self._trouble_since = None
            self._doubts = 0
            self._unread = self._unread + 1 if reason else 0
            unread = self._unread
        if unread > self._limits.unread_in_a_row:
            raise OutsideError(
                f"the last {unread} answers could not be read, the last one: {reason}",
                "look at requests/raw/ and mend the cause before more is paid; then --resume",
            )

    def doubtful(self, reason: str) -> None:
        """A request was taken and not answered.

        Raises:
            OutsideError: too many in a row, and each of them may be paid.
        """
        with self._lock:
            self._doubts += 1
            doubts = self._doubts
        if doubts > self._limits.doubts_in_a_row:
            raise OutsideError(
                f"the endpoint took {doubts} requests in a row and answered none; last: {reason}",
                "check the endpoint and judge.requests.read_seconds; they are in doubt, the rest can --resume",
            )

    def refused(self, reason: str) -> None:
        """A try failed.

        Raises:
            OutsideError: nothing at all has been answered for too long.
        """
        now = time.monotonic()
        with self._lock:
            if self._trouble_since is None:
                self._trouble_since = now
            self._last_refusal = reason
            seconds, ever = now - self._trouble_since, self.answers > 0
        limit = self._limits.outage_seconds if ever else self._limits.first_answer_seconds
        if seconds > limit:
            what = "has stopped answering" if ever else "has not answered once"
            raise OutsideError(
                f"the endpoint {what} for {seconds:.0f} s; last: {reason}",
                "check the endpoint (judge.base_url) and the network, then run again with --resume; no answer is lost",
            )

    def wait(self, tries: int, asked: float | None) -> float:
        """`wait_seconds` with this object's jitter."""
        with self._lock:
            return wait_seconds(tries, asked, self._limits, self._random.random)
