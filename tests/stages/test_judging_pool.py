"""Many groups at a time, lines as they are finished, an orderly end."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from stateplay_rl.errors import OutsideError
from stateplay_rl.judges.base import GroupVerdict, scored
from stateplay_rl.judges.mix import MixJudge, MixPart
from stateplay_rl.judges.remote import RemoteJudge, StoppedError, remote_judges, workers_of
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.judging_pool import judged_lines
from tests.judges.judge_fakes import FakeJudge

IDS = [f"{n:03d}" for n in range(30)]


class FakeRemote(RemoteJudge):
    """Records how it was ended."""

    judge_id = "remote"
    protocol_sha256 = "0" * 64

    def __init__(self, workers: int = 4, finish_seconds: float = 20.0) -> None:
        self.workers, self.finish_seconds = workers, finish_seconds
        self.stopped = threading.Event()
        self.abandoned = 0

    def score_group(self, group: Any) -> GroupVerdict:
        return scored([1.0])

    def score_again(self, group: Any, repeat: int, *, other_prompt: bool = False) -> GroupVerdict:
        return scored([1.0])

    def require_ready(self) -> None:
        pass

    def stop(self) -> None:
        self.stopped.set()

    def abandon(self) -> tuple[str, ...]:
        self.abandoned += 1
        return ("r-1",)

    def close(self) -> None:
        """Holds nothing."""


def run(judge: RemoteJudge, make_line: Any, seen: list[str]) -> None:
    with Progress("test") as progress:
        for line in judged_lines(judge, IDS, make_line, progress):
            seen.append(line["id"])


def test_every_line_comes_once_and_a_slow_one_holds_up_no_other() -> None:
    most, now, lock = [0], [0], threading.Lock()

    def make(name: str) -> dict[str, Any]:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.5 if name == "000" else 0.002)
        with lock:
            now[0] -= 1
        return {"id": name}

    seen: list[str] = []
    run(FakeRemote(), make, seen)
    assert sorted(seen) == IDS
    assert seen[0] != "000"
    assert 1 < most[0] <= 4


def test_a_judge_of_this_process_gets_one_at_a_time_in_the_calling_thread() -> None:
    threads: set[int] = set()

    def make(name: str) -> dict[str, Any]:
        threads.add(threading.get_ident())
        return {"id": name}

    judge = FakeJudge(scored([1.0]))
    assert workers_of(judge) == 1
    with Progress("test") as progress:
        assert [line["id"] for line in judged_lines(judge, IDS, make, progress)] == IDS
    assert threads == {threading.get_ident()}


def test_an_error_stops_the_rest_and_whole_lines_come_first() -> None:
    judge = FakeRemote()
    begun: list[str] = []

    def make(name: str) -> dict[str, Any]:
        begun.append(name)
        if name == "010":
            time.sleep(0.05)
            raise OutsideError("the budget is reached", "more")
        if judge.stopped.is_set():
            raise StoppedError("stopped")
        time.sleep(0.01)
        return {"id": name}

    seen: list[str] = []
    with pytest.raises(OutsideError, match="budget"):
        run(judge, make, seen)
    assert "010" not in seen
    assert set(IDS[:10]) <= set(seen)
    assert len(begun) < len(IDS)
    assert judge.stopped.is_set()
    assert judge.abandoned == 0


def interrupt(lines: Any, seen: list[str]) -> None:
    """Ctrl-C inside the generator; what it still gives out is taken."""
    seen.append(lines.throw(KeyboardInterrupt())["id"])
    seen += [line["id"] for line in lines]


def test_ctrl_c_finishes_what_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = FakeRemote()
    seen: list[str] = []

    def make(name: str) -> dict[str, Any]:
        time.sleep(0.05)
        return {"id": name}

    with Progress("test") as progress:
        lines = judged_lines(judge, IDS, make, progress)
        for line in lines:
            seen.append(line["id"])
            if len(seen) == 3:
                break
        with pytest.raises(KeyboardInterrupt):
            interrupt(lines, seen)
    assert 3 < len(seen) < len(IDS)
    assert judge.stopped.is_set()
    assert judge.abandoned == 0


def test_what_does_not_end_in_time_is_abandoned() -> None:
    judge = FakeRemote(finish_seconds=0.3)
    release = threading.Event()

    def make(name: str) -> dict[str, Any]:
        if name == "001":
            raise OutsideError("down", "resume")
        release.wait(20)
        return {"id": name}

    with pytest.raises(OutsideError, match="down"):
        run(judge, make, [])
    assert judge.abandoned == 1
    release.set()


def test_remote_parts_of_a_mix_are_found() -> None:
    remote = FakeRemote(workers=7)
    mix = MixJudge({"a": MixPart(remote, 1.0), "b": MixPart(FakeJudge(scored([1.0])), 1.0)})
    assert remote_judges(mix) == (remote,)
    assert workers_of(mix) == 7
