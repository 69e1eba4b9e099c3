"""Score groups while the next ones are still being sampled, and measure their pictures.

A group goes to the judge when its last candidate is on disk. Judge and measures see the stored MP4s, never what is
in memory, so a resumed run sees the same pixels; a verdict that is on disk is never asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np

from stateplay_rl.evaluation.picture import measure_picture
from stateplay_rl.judges.base import Judge
from stateplay_rl.stages.candidates import picture_spread
from stateplay_rl.stages.train_nft.samples import JudgedGroup
from stateplay_rl.stages.verdicts import verdict_line
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.video import decode_mp4


def judge_group(judge: Judge, group: StoredGroup, line: Mapping[str, Any] | None) -> JudgedGroup:
    """One verdict (`line` when it is known already) and the picture measures of one finished group."""
    line = verdict_line(group, judge) if line is None else line
    record = group.record
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
    )


class ScoringQueue:
    """Judges groups in the background; results come back in the order in which groups were given.

    Args:
        known: verdict lines by group id that need not be asked for again.
    """

    def __init__(self, judge: Judge, known: Mapping[str, Mapping[str, Any]], workers: int = 1) -> None:
        self._judge = judge
        self._known = known
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="judge")
        self._waiting: list[Future[JudgedGroup]] = []

    def put(self, group: StoredGroup) -> None:
        """Queue a finished group."""
        line = self._known.get(group.record.group_id)
        self._waiting.append(self._pool.submit(judge_group, self._judge, group, line))

    def results(self) -> Sequence[JudgedGroup]:
        """Wait for all queued groups; the first error of a judge is raised here."""
        done = [future.result() for future in self._waiting]
        self._waiting.clear()
        return done

    def __enter__(self) -> ScoringQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
