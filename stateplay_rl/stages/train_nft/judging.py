"""Score groups while the next ones are still being sampled, and measure their pictures.

A group goes to the judge when its last candidate is on disk. Judge and measures see the stored MP4s, never what is
in memory, so a resumed run sees the same pixels; a verdict that is on disk is never asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Event
from types import TracebackType
from typing import Any

import numpy as np

from stateplay_rl.config.train_nft import JudgingConfig, TrainNftConfig
from stateplay_rl.errors import JudgeDownError, OutsideError
from stateplay_rl.evaluation.picture import measure_picture
from stateplay_rl.judges.base import Judge
from stateplay_rl.judges.remote import remote_judges
from stateplay_rl.stages.candidates import picture_spread
from stateplay_rl.stages.train_nft.in_flight import InFlight, Judges, Lines, Role
from stateplay_rl.stages.train_nft.samples import JudgedGroup
from stateplay_rl.stages.verdicts import verdict_line
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.video import decode_mp4

LONGEST_WAIT_SECONDS = 600.0
API_IN_FLIGHT = 28
SECONDS_PER_HOUR = 3600.0


def workers_per_rank(config: TrainNftConfig, ranks: int) -> int:
    """Groups that one rank has judged at once; a judge in this process gets one at a time unless told otherwise."""
    wanted = config.judging.in_flight
    if wanted is None:
        wanted = API_IN_FLIGHT if config.uses_api else ranks
    return max(1, -(-wanted // ranks))


class Patience:
    """Asks a judge until it answers: a judge that is down is waited for, with growing pauses.

    Args:
        settings: how long, and the first pause.
        stop: set when the run ends for another reason: no more waiting then.
    """

    def __init__(self, settings: JudgingConfig, stop: Event) -> None:
        self._settings, self._stop = settings, stop
        self.trouble: str | None = None
        """What the judge last said while it was down; None when it answers."""

    def ask(self, judge: Judge, group: StoredGroup) -> dict[str, Any]:
        """The judge's verdict line.

        Raises:
            OutsideError: it stayed down for longer than is waited.
        """
        pause, waited = self._settings.retry_seconds, 0.0
        limit = self._settings.outage_hours * SECONDS_PER_HOUR
        while True:
            try:
                line = verdict_line(group, judge)
            except JudgeDownError as error:
                if waited >= limit or self._stop.is_set():
                    raise OutsideError(
                        f"the judge {judge.judge_id} is down, waited for {waited:.0f} s: {error.what}",
                        "groups and verdicts so far are kept: run again with --resume when it is back",
                    ) from error
                self.trouble = f"judge {judge.judge_id} is down ({error.what}); waiting"
                pause = min(pause, limit - waited)
                self._stop.wait(pause)
                waited += pause
                pause = min(2 * pause, LONGEST_WAIT_SECONDS)
            else:
                self.trouble = None
                return line


def judged_group(group: StoredGroup, lines: Mapping[Role, Mapping[str, Any]]) -> JudgedGroup:
    """A finished group with its verdicts and picture measures."""
    line, record = lines["training"], group.record
    videos = [decode_mp4(group.candidate_video(k)) for k in range(record.candidates)]
    measures = [measure_picture(video) for video in videos]
    picture = {name: float(np.mean([m[name] for m in measures])) for name in measures[0]}
    picture["diversity"] = picture_spread(videos)
    reference = group.reference_video()
    complete = line["status"] == "scored"
    return JudgedGroup(
        group_id=record.group_id,
        condition_id=record.condition_id,
        mechanics_class=record.mechanics_class,
        latent_frames=record.latent_frames,
        scores=tuple(line["scores"]) if complete else (None,) * record.candidates,
        reason=None if complete else (line["reason"] or line["status"]),
        line=line,
        picture=picture,
        picture_real=measure_picture(decode_mp4(reference)) if reference is not None else None,
        audit=lines.get("audit"),
        referee=lines.get("referee"),
    )


class ScoringQueue:
    """Judges groups in the background; results come back in the order in which groups were given.

    Args:
        judges: who looks at a group.
        known: verdict lines that need not be asked for again.
        settings: what to do while a judge is down.
        workers: groups judged at once.
        in_flight: where new verdicts are kept until they stand in the logs; None keeps none.
    """

    def __init__(
        self,
        judges: Judges,
        known: Lines,
        settings: JudgingConfig,
        *,
        workers: int = 1,
        in_flight: InFlight | None = None,
    ) -> None:
        self._judges, self._known, self._in_flight = judges, known, in_flight
        self._stop = Event()
        self._patience = Patience(settings, self._stop)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="judge")
        self._waiting: list[Future[JudgedGroup]] = []

    @property
    def trouble(self) -> str | None:
        """Why a judge does not answer now, if one does not."""
        waiting = (
            f"judge {remote.judge_id} is down ({remote.trouble}); waiting"
            for judge in self._judges.all()
            for remote in remote_judges(judge)
            if remote.trouble is not None
        )
        return self._patience.trouble or next(waiting, None)

    def put(self, group: StoredGroup, *, audited: bool = False) -> None:
        """Queue a finished group."""
        self._waiting.append(self._pool.submit(self._judge, group, audited))

    def wait(self, seconds: float) -> int:
        """Wait for all queued groups, at most so long; returns how many are left. A judge's error is raised here."""
        done, left = wait(self._waiting, timeout=seconds, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        return len(left)

    def results(self) -> Sequence[JudgedGroup]:
        """Wait for all queued groups; the first error of a judge is raised here."""
        done = [future.result() for future in self._waiting]
        self._waiting.clear()
        return done

    def _judge(self, group: StoredGroup, audited: bool) -> JudgedGroup:
        lines: dict[Role, Mapping[str, Any]] = {}
        for role, judge in self._judges.by_role(audited=audited).items():
            known = self._known.get(role, {}).get(group.record.group_id)
            lines[role] = self._ask(role, judge, group) if known is None else known
        return judged_group(group, lines)

    def _ask(self, role: Role, judge: Judge, group: StoredGroup) -> dict[str, Any]:
        line = self._patience.ask(judge, group)
        if self._in_flight is not None:
            self._in_flight.write(role, line)
        return line

    def __enter__(self) -> ScoringQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nobody waits for a judge that is down when the run ends for another reason.
        if error is not None:
            self._stop.set()
            for judge in self._judges.all():
                for remote in remote_judges(judge):
                    remote.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
