"""Judges that wait for something outside: many groups at a time, and an orderly end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from stateplay_rl.errors import OutsideError
from stateplay_rl.judges.base import GroupVerdict, Judge
from stateplay_rl.judges.mix import MixJudge
from stateplay_rl.stores.groups import StoredGroup


class StoppedError(OutsideError):
    """The command is ending: this group was not asked about."""


class RemoteJudge(ABC):
    """A judge behind a network. `score_group` may be called by `workers` threads at a time."""

    judge_id: str
    protocol_sha256: str
    workers: int
    finish_seconds: float
    """How long an ending command waits for what is in flight."""

    @property
    def trouble(self) -> str | None:
        """Why no answer has come for a while, for people; None when all is well. It goes on trying meanwhile."""
        return None

    @abstractmethod
    def score_group(self, group: StoredGroup) -> GroupVerdict:
        """As `Judge.score_group`.

        Raises:
            StoppedError: `stop` was called before anything was sent.
        """

    @abstractmethod
    def score_again(self, group: StoredGroup, repeat: int, *, other_prompt: bool = False) -> GroupVerdict:
        """For the probe: candidates in the group's own order, the `repeat`-th time.

        Args:
            group: the group.
            repeat: number of times that the very same was asked before.
            other_prompt: show the text about the opponent when it is hidden, and the other way round.
        """

    @abstractmethod
    def require_ready(self) -> None:
        """Refuse now what every request would be refused for; sends nothing.

        Raises:
            UsageError: no usable key.
        """

    @abstractmethod
    def stop(self) -> None:
        """Send nothing more; what is in flight is finished."""

    @abstractmethod
    def abandon(self) -> tuple[str, ...]:
        """Mark what is in flight as in doubt; returns the ids of those attempts."""

    @abstractmethod
    def close(self) -> None:
        """Give up the request store and the connections; usable again afterwards."""


def remote_judges(judge: Judge) -> tuple[RemoteJudge, ...]:
    """The remote judges in a judge: itself, or the parts of a mix."""
    if isinstance(judge, RemoteJudge):
        return (judge,)
    if isinstance(judge, MixJudge):
        return tuple(found for part in judge.parts.values() for found in remote_judges(part.judge))
    return ()


def workers_of(judge: Judge) -> int:
    """Groups that may be judged at one time: 1 for judges that compute in this process."""
    return max((remote.workers for remote in remote_judges(judge)), default=1)


@contextmanager
def closing_judge(judge: Judge) -> Iterator[Judge]:
    """Give up what a judge holds at the end of a block."""
    try:
        yield judge
    finally:
        close_judge(judge)


def close_judge(judge: Judge) -> None:
    """Give up what a judge holds; judges in this process hold nothing."""
    for remote in remote_judges(judge):
        remote.close()
