"""Work of rank 0, and its errors on every rank. Two real processes: tests/test_distributed.py."""

from __future__ import annotations

from typing import Any

import pytest

from stateplay_rl.errors import CheckError, InputError, OutsideError
from stateplay_rl.stages.main_process import on_main


class FakeRank:
    """A rank that hears what rank 0 would have said."""

    def __init__(self, rank: int, count: int, heard: Any = None) -> None:
        self.is_main, self.count, self.heard = rank == 0, count, heard
        self.said: list[Any] = []

    def broadcast(self, value: Any) -> Any:
        self.said.append(value)
        return value if self.is_main else self.heard


def refuse() -> None:
    raise CheckError("what", "hint")


def test_one_process_does_the_work() -> None:
    alone = FakeRank(0, 1)
    assert on_main(alone, lambda: 7) == 7  # type: ignore[arg-type]
    with pytest.raises(CheckError):
        on_main(alone, refuse)  # type: ignore[arg-type]
    assert alone.said == []


def test_rank_0_tells_the_others() -> None:
    first = FakeRank(0, 2)
    assert on_main(first, lambda: 7) == 7  # type: ignore[arg-type]
    with pytest.raises(CheckError):
        on_main(first, refuse)  # type: ignore[arg-type]
    assert first.said == [None, (CheckError, "what", "hint")]


def test_other_ranks_do_nothing_and_raise_what_rank_0_raised() -> None:
    def never() -> None:
        raise AssertionError("work of rank 0 on another rank")

    assert on_main(FakeRank(1, 2), never) is None  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        on_main(FakeRank(1, 2, heard=(InputError, "what", "hint")), never)  # type: ignore[arg-type]
    assert (caught.value.what, caught.value.hint) == ("what", "hint")


def test_a_bug_on_rank_0_stops_the_others_too() -> None:
    def bug() -> None:
        raise ZeroDivisionError("planted")

    first = FakeRank(0, 2)
    with pytest.raises(ZeroDivisionError):
        on_main(first, bug)  # type: ignore[arg-type]
    ((kind, what, _),) = first.said
    assert issubclass(kind, OutsideError)
    with pytest.raises(OutsideError):
        on_main(FakeRank(1, 2, heard=(kind, what, "")), bug)  # type: ignore[arg-type]
