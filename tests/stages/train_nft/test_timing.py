"""Seconds by part; no value is asserted but their signs."""

from __future__ import annotations

import pytest

from stateplay_rl.stages.train_nft.timing import PartTimer


def test_parts_add_up_and_errors_are_timed_too() -> None:
    timer = PartTimer()
    with timer("train"):
        pass
    first = timer.line()["seconds"]["train"]
    with timer("train"), timer("evaluate"):
        sum(range(1000))
    with pytest.raises(KeyError), timer("checkpoint"):
        raise KeyError
    line = timer.line()
    assert set(line["seconds"]) == {"train", "evaluate", "checkpoint"}
    assert line["seconds"]["train"] >= max(first, line["seconds"]["evaluate"])
    assert line["peak_memory_mb"] > 1.0
