"""Devices, ranks, seeds, progress."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch

from stateplay_rl import runtime
from stateplay_rl.errors import UsageError


@pytest.fixture(autouse=True)
def _not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line with --quiet that ran earlier in this process must not be heard here."""
    monkeypatch.setattr(runtime, "_quiet", False)


def test_ranks_come_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert runtime.ranks() == runtime.Ranks(0, 0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert runtime.ranks().rank == 3
    assert not runtime.ranks().is_main
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(UsageError, match="RANK"):
        runtime.ranks()


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runtime.pick_device() == torch.device("cpu")
    assert runtime.pick_device("cpu") == torch.device("cpu")
    with pytest.raises(UsageError, match="0 GPUs are visible"):
        runtime.pick_device("cuda:1")
    with pytest.raises(UsageError, match="'gpu9' is unknown"):
        runtime.pick_device("gpu9")


def test_seeds_repeat_all_three_generators() -> None:
    draws = []
    for _ in range(2):
        runtime.seed_everything(2**63 + 5)
        draws.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    assert draws[0] == draws[1]


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    runtime.pin_threads(1)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)
    with pytest.raises(UsageError, match="0 threads"):
        runtime.pin_threads(0)


def test_progress_is_plain_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with runtime.Progress("rollout", total=4, unit="groups") as progress:
        progress.advance(3, note="reward [50]")
        progress.say("[bold]kept as text[/bold]")
        progress.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[bold]kept as text[/bold]"
    assert lines[1].startswith("rollout: 4/4 groups, ")
    assert lines[1].endswith(", reward [50]")


def test_plain_lines_are_rare(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, *[1.0] * 5, *[12.0] * 10])
    monkeypatch.setattr(runtime.time, "monotonic", lambda: next(seconds))
    with runtime.Progress("score") as progress:
        for _ in range(7):
            progress.advance()
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "score: 6 steps",
        "score: 7 steps",
    ]


@pytest.mark.parametrize("reason", ["quiet", "rank"])
def test_progress_is_silent_when_quiet_and_on_other_ranks(capsys, monkeypatch, reason: str) -> None:
    if reason == "quiet":
        monkeypatch.setattr(runtime, "_quiet", True)
    else:
        monkeypatch.setenv("RANK", "1")
    with runtime.Progress("rollout", total=1) as progress:
        progress.advance()
        progress.say("x")
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with runtime.Progress("rollout", total=2, unit="groups") as progress:
        progress.advance(2, note="[red]")
        progress.say("a line")
    text = capsys.readouterr().err
    assert "2/2" in text
    assert "[red]" in text
    assert "a line" in text


def screens(text: str) -> list[str]:
    """What stands on the terminal after each drawing: the lines since the last cursor-up."""
    return [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", part) for part in re.split(r"\x1b\[1A(?:\x1b\[2K)?", text)]


def test_loops_inside_of_each_other_share_one_display(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with runtime.Progress("train", total=3, unit="batches") as outer:
        outer.advance(note="reward 50.0, 2 alarms, 57 requests, cost 1.92", left="12 min left")
        with runtime.Progress("batch 1: rollout", total=4, unit="conditions") as inner:
            inner.advance(3)
            inner._display.refresh()
            both = screens(capsys.readouterr().err)
            inner.say("the judge is down")
        outer._display.refresh()
        after = screens(capsys.readouterr().err)
    drawn = "\n".join(both[-3:])
    assert "1/3 batches" in drawn
    assert "12 min left" in drawn
    assert "3/4 conditions" in drawn
    assert drawn.rstrip().endswith("reward 50.0, 2 alarms, 57 requests, cost 1.92")
    assert any("the judge is down" in screen for screen in after)
    assert "rollout" not in "\n".join(after[-2:])
    assert runtime._Display.current is None


def test_the_callers_own_estimate_ends_a_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    with runtime.Progress("train-nft", total=2, unit="batches") as progress:
        progress.advance(note="reward 50.0", left="3 min left")
    assert capsys.readouterr().err.splitlines()[-1].endswith(" s, reward 50.0, 3 min left")


def test_an_error_ends_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(ZeroDivisionError), runtime.Progress("outer", 1), runtime.Progress("inner", 1):
        raise ZeroDivisionError
    assert runtime._Display.current is None
