"""Score groups while the next ones are still being sampled, and measure their pictures.

A group goes to the judge when its last candidate is on disk. Judge and measures see the stored MP4s, never what is
in memory, so a resumed run sees the same pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np

from stateplay_rl.evaluation.picture import measure_picture
from stateplay_rl.judges.base import Judge
from stateplay_rl.stages.candidates import picture_spread
from stateplay_rl.stages.train_nft.samples import JudgedGroup
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.video import decode_mp4


def judge_group(judge: Judge, group: StoredGroup) -> JudgedGroup:
    """One verdict and the picture measures of one finished group."""
    verdict = judge.score_group(group)
    record = group.record
    videos = [decode_mp4(group.candidate_video(k)) for k in range(len(record.seeds))]
    measures = [measure_picture(video) for video in videos]
    picture = {name: float(np.mean([m[name] for m in measures])) for name in measures[0]}
    picture["diversity"] = picture_spread(videos)
    reference = group.reference_video()
    complete = verdict.status == "scored"
    return JudgedGroup(
        group_id=record.group_id,
        condition_id=record.condition_id,
        mechanics_class=record.mechanics_class,
        latent_frames=record.latent_frames,
        scores=verdict.scores if complete else (None,) * len(record.seeds),
        reason=None if complete else (verdict.reason or verdict.status),
        details=verdict.details,
        picture=picture,
        picture_real=measure_picture(decode_mp4(reference)) if reference is not None else None,
    )


class ScoringQueue:
    """Judges groups in the background; results come back in the order in which groups were given."""

    def __init__(self, judge: Judge, workers: int = 1) -> None:
        self._judge = judge
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="judge")
        self._waiting: list[Future[JudgedGroup]] = []

    def put(self, group: StoredGroup) -> None:
        """Queue a finished group."""
        self._waiting.append(self._pool.submit(judge_group, self._judge, group))

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
