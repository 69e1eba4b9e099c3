"""The soak script, one short round; and that it sees what it is there for."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from examples.drills.soak import Disk, Round, paid_twice
from stateplay_rl.stores.attempts import AttemptEnd, Intent
from stateplay_rl.stores.requests import RequestStore

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_a_short_soak_ends_equal(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "examples/drills/soak.py"), "--out", str(tmp_path / "soak")]
    sizes = ["--minutes", "5", "--rounds", "1", "--conditions", "4", "--per-batch", "2", "--seed", "3"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*script, *sizes], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((tmp_path / "soak" / "soak.json").read_text())["rounds"]
    assert found["differences"] == []
    assert found["results_compared"] >= 6
    assert found["attempts"]


def test_a_disk_is_filled_although_the_run_writes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 bytes the run takes 2,000 between the look at the disk and the first try."""
    disk, real, tries = Disk(tmp_path), os.posix_fallocate, []

    def free(_: Path) -> SimpleNamespace:
        ballast = (tmp_path / "ballast").stat().st_size
        return SimpleNamespace(free=(8_000 if tries else 10_000) - ballast)

    def allocate(file: int, start: int, size: int) -> None:
        tries.append(size)
        if size > 8_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, start, size)

    monkeypatch.setattr(shutil, "disk_usage", free)
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    disk.fill(500)
    assert (tries, (tmp_path / "ballast").stat().st_size) == ([9_500, 7_500], 7_500)
    disk.empty()
    assert list(tmp_path.iterdir()) == []


INTENT = Intent("k", "g", "openai:m", "p" * 64, "m", "http://127.0.0.1:1/v1", (), "score", 10)


@pytest.mark.parametrize("first", [AttemptEnd("answered"), AttemptEnd("in_doubt", "reset")])
def test_a_request_that_is_sent_again_is_seen(tmp_path: Path, first: AttemptEnd) -> None:
    with RequestStore(tmp_path) as store:
        for known, end in enumerate((first, AttemptEnd("answered"))):
            request_id = store.begin(INTENT, known)
            assert request_id is not None
            store.end(request_id, end, {"answer": ""} if end.state == "answered" else None)
    assert len(paid_twice(tmp_path, Round(0))) == 1


def test_an_answer_without_scores_may_be_asked_for_once_more(tmp_path: Path) -> None:
    with RequestStore(tmp_path) as store:
        for known, end in enumerate((AttemptEnd("answered", "no_json"), AttemptEnd("answered"))):
            request_id = store.begin(INTENT, known)
            assert request_id is not None
            store.end(request_id, end, {"answer": ""})
    assert paid_twice(tmp_path, Round(0)) == []
