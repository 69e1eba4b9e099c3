"""Work that only rank 0 may do, with its errors on every rank: otherwise the others would wait for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stateplay_rl.distributed import Processes
from stateplay_rl.errors import OutsideError, SprlError

T = TypeVar("T")


def on_main(processes: Processes, work: Callable[[], T]) -> T | None:
    """Run `work` on rank 0; None elsewhere.

    Raises:
        SprlError: what `work` raised, on every rank.
        OutsideError: on the other ranks, when rank 0 fails in any other way (there the error itself goes on).
    """
    result: T | None = None
    error: SprlError | None = None
    if processes.is_main:
        try:
            result = work()
        except SprlError as raised:
            error = raised
        except BaseException as raised:
            if processes.count > 1:
                processes.broadcast((OutsideError, f"rank 0 failed: {raised!r}", "look at its log, then --resume"))
            raise
    if processes.count > 1:
        facts = processes.broadcast(None if error is None else (type(error), error.what, error.hint))
        if facts is not None and error is None:
            kind, what, hint = facts
            error = kind(what, hint)
    if error is not None:
        raise error
    return result


def raise_together(processes: Processes, error: SprlError | None) -> None:
    """Raise the first rank's error on every rank, or nothing when there is none.

    Raises:
        SprlError: what one rank ran into.
    """
    facts = processes.gather([None if error is None else (type(error), error.what, error.hint)])
    first = next(((rank, fact) for rank, fact in enumerate(facts) if fact is not None), None)
    if first is None:
        return
    rank, (kind, what, hint) = first
    if error is not None and rank == processes.rank:
        raise error
    raise kind(what if processes.count == 1 else f"rank {rank}: {what}", hint)
