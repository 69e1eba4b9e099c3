"""Judge many groups at a time, and end in an orderly way.

A judge that computes here gets one group at a time, in order. A remote judge gets as many as it wants, and lines come
as they are finished: one that waited for an earlier group would have to be found in the request store after a kill.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stateplay_rl.judges.base import Judge
from stateplay_rl.judges.remote import StoppedError, remote_judges, workers_of
from stateplay_rl.runtime import Progress

Line = dict[str, Any]
MakeLine = Callable[[str], Line]
_POLL_SECONDS = 0.2
_NOTE_SECONDS = 5.0


def judged_lines(judge: Judge, group_ids: Sequence[str], make_line: MakeLine, progress: Progress) -> Iterator[Line]:
    """Verdict lines of the groups, as they are finished.

    On an error, or Ctrl-C, nothing more is sent; what is in flight is finished, or, after a while or a second Ctrl-C,
    marked as in doubt. Lines that are whole by then are given out before the error is raised.

    Args:
        judge: whose `workers` decide how many groups run at a time; with one they come in order.
        group_ids: the groups.
        make_line: judges one group; called from several threads.
        progress: shows what is waited for at the end.

    Raises:
        SprlError: the first error of any group.
        KeyboardInterrupt: Ctrl-C, after the end described above.
    """
    workers = workers_of(judge)
    if workers == 1:
        for group_id in group_ids:
            yield make_line(group_id)
        return
    pool = _Pool(judge, group_ids, make_line, min(workers, len(group_ids)), progress)
    pool.start()
    given = 0
    try:
        while given < len(group_ids):
            line = pool.next_line()
            if line is None:
                break
            yield line
            given += 1
    except KeyboardInterrupt:
        pool.end(interrupted=True)
        yield from pool.ready()
        raise
    except GeneratorExit:
        pool.end(interrupted=True)
        raise
    if given < len(group_ids):
        pool.end(interrupted=False)
        yield from pool.ready()
        pool.raise_error()


class _Pool:
    """Daemon threads: one that hangs in a read must not keep the process alive after a second Ctrl-C."""

    def __init__(
        self, judge: Judge, group_ids: Sequence[str], make_line: MakeLine, workers: int, progress: Progress
    ) -> None:
        self._judge, self._ids, self._make_line, self._progress = judge, group_ids, make_line, progress
        self._changed = threading.Condition()
        self._next = 0
        self._lines: deque[Line] = deque()
        self._error: BaseException | None = None
        self._running = 0
        self._closed = False
        self._threads = [threading.Thread(target=self._work, daemon=True, name=f"judge-{n}") for n in range(workers)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def next_line(self) -> Line | None:
        """The next finished line; None when an error has ended the pool."""
        with self._changed:
            while not self._lines and self._error is None:
                # A timed wait, so that Ctrl-C reaches the main thread on every platform.
                self._changed.wait(_POLL_SECONDS)
            return self._lines.popleft() if self._lines else None

    def ready(self) -> Iterator[Line]:
        """Lines that are finished."""
        while self._lines:
            yield self._lines.popleft()

    def raise_error(self) -> None:
        assert self._error is not None, "the pool ended without an error"
        raise self._error

    def end(self, *, interrupted: bool) -> None:
        """Send nothing more, finish what is in flight, or mark it as in doubt."""
        self._closed = True
        remotes = remote_judges(self._judge)
        for remote in remotes:
            remote.stop()
        limit = max((remote.finish_seconds for remote in remotes), default=0.0)
        hurried = False
        try:
            self._wait_until_idle(limit, interrupted)
        except KeyboardInterrupt:
            hurried = True
        if self._running:
            doubtful = [name for remote in remotes for name in remote.abandon()]
            why = "interrupted again" if hurried else f"no answer within {limit:g} s"
            self._progress.say(
                f"{why}: {len(doubtful)} requests in flight are now in doubt (not sent again without "
                f"--resend-in-doubt): {', '.join(doubtful)}"
            )

    def _wait_until_idle(self, limit: float, interrupted: bool) -> None:
        deadline = time.monotonic() + limit
        told = 0.0
        while self._running and time.monotonic() < deadline:
            if time.monotonic() - told > _NOTE_SECONDS:
                told = time.monotonic()
                again = "; Ctrl-C again marks them as in doubt" if interrupted else ""
                self._progress.say(f"finishing {self._running} groups that are being judged{again}")
            time.sleep(_POLL_SECONDS / 4)

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._closed or self._error is not None or self._next >= len(self._ids):
                    return
                position = self._next
                self._next += 1
                self._running += 1
            line: Line | None = None
            error: BaseException | None = None
            try:
                line = self._make_line(self._ids[position])
            except BaseException as found:  # noqa: BLE001 - raised again in the main thread
                error = found
            self._finished(line, error)

    def _finished(self, line: Line | None, error: BaseException | None) -> None:
        with self._changed:
            self._running -= 1
            if line is not None:
                self._lines.append(line)
            elif self._error is None or isinstance(self._error, StoppedError):
                # That a group was stopped says nothing about why.
                self._error = error
            self._changed.notify_all()
