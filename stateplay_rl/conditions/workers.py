"""Examine many rows at once, a bounded number in flight, and survive rows that kill their process.

Always in processes of their own, also when there is one worker: a damaged file can make a decoder or the
Parquet library abort, and no exception handler helps then.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.conditions.examine import Outcome, examine_row
from stateplay_rl.conditions.source import SourceRow
from stateplay_rl.config.conditions import ClipRules
from stateplay_rl.errors import OutsideError
from stateplay_rl.evaluation.hud import HudReader

_IN_FLIGHT_PER_WORKER = 4
# Imported once by the server that workers are forked from, not by every worker.
_PRELOAD = ["stateplay_rl.conditions.workers"]


@dataclass(frozen=True)
class ExamineJob:
    """What all rows of a build share.

    Args:
        data_root: resolved folder that the rows' paths are relative to.
        rules: what is accepted.
        out: the conditions directory; its folders exist.
        keys: key of each row's outcome, by row number.
        reader: reads the HUD of first frames; None: they are not compared with the state columns.
    """

    data_root: Path
    rules: ClipRules
    out: Path
    keys: Mapping[int, str]
    reader: HudReader | None = None


def examine_rows(rows: Sequence[SourceRow], job: ExamineJob, workers: int) -> Iterator[Outcome]:
    """Outcomes of rows as they come, in any order.

    A row whose process dies (a fault inside a decoder) is tried once more alone, then rejected.

    Args:
        rows: what to examine.
        job: shared settings.
        workers: number of processes.

    Raises:
        OutsideError: the disk is full or read-only, or no worker process can be started.
    """
    remaining = list(rows)
    while remaining:
        lost: list[SourceRow] = []
        yield from _pooled(remaining, job, workers, lost)
        # Whatever was in flight when a process died comes first in `lost`; one of them did it.
        suspects, remaining = lost[: workers * _IN_FLIGHT_PER_WORKER], lost[workers * _IN_FLIGHT_PER_WORKER :]
        for row in suspects:
            yield _alone(row, job)


def _pooled(rows: Sequence[SourceRow], job: ExamineJob, workers: int, lost: list[SourceRow]) -> Iterator[Outcome]:
    """Outcomes from a pool; when a process dies, rows without outcome go to `lost`, those in flight first."""
    queue = iter(rows)
    with _pool(workers, job) as pool:
        flying: dict[Future[Outcome], SourceRow] = {}
        try:
            for row in queue:
                flying[pool.submit(_examine_here, row, job.keys[row.row])] = row
                if len(flying) < workers * _IN_FLIGHT_PER_WORKER:
                    continue
                yield from _finished(flying, lost)
                if lost:
                    break
            while flying and not lost:
                yield from _finished(flying, lost)
        except BrokenProcessPool:
            lost.append(row)
        finally:
            pool.shutdown(wait=not lost, cancel_futures=True)
        if lost:
            lost.extend(flying.values())
            lost.extend(queue)


def _finished(flying: dict[Future[Outcome], SourceRow], lost: list[SourceRow]) -> Iterator[Outcome]:
    for future in wait(flying, return_when=FIRST_COMPLETED).done:
        row = flying.pop(future)
        try:
            outcome = future.result()
        except BrokenProcessPool:
            lost.append(row)
            continue
        yield outcome


def _alone(row: SourceRow, job: ExamineJob) -> Outcome:
    with _pool(1, job) as pool:
        try:
            pool.submit(os.getpid).result()
        except BrokenProcessPool as error:
            what = "worker processes die before they read anything"
            raise OutsideError(what, "is there memory left? then run again with --resume") from error
        try:
            return pool.submit(_examine_here, row, job.keys[row.row]).result()
        except BrokenProcessPool:
            detail = "its process died twice while reading this row"
            return Outcome(row.row, job.keys[row.row], "decoder_crashed", detail)


def _pool(workers: int, job: ExamineJob) -> ProcessPoolExecutor:
    # A plain fork would inherit the output's lock, and a worker would keep it when the parent is killed.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    shared = ExamineJob(job.data_root, job.rules, job.out, {}, job.reader)  # keys travel with their rows
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(shared,))


# What a worker process was started with.
_shared: list[ExamineJob] = []


def _start(job: ExamineJob) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; it stops its workers itself
    _shared.append(job)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """End with the parent, also when it was killed and could not say so."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _examine_here(row: SourceRow, key: str) -> Outcome:
    job = _shared[0]
    return examine_row(row, key, job.data_root, job.rules, job.out, job.reader)
