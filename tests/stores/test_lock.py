"""Locks: a second process is refused, a dead one is not waited for."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from stateplay_rl.errors import OutputError
from stateplay_rl.stores.lock import DirectoryLock, LockHolder

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys
from pathlib import Path
from stateplay_rl.stores.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1])).acquire()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def write_holder(folder: Path, **changes: object) -> None:
    (folder / ".sprl-lock").write_text(json.dumps(asdict(LockHolder.current()) | changes))


def test_a_second_process_is_refused_and_told_who(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(OutputError, match=f"process {holder.pid} on host {socket.gethostname()}"):
        DirectoryLock(tmp_path).acquire()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / ".sprl-lock").exists()
    with DirectoryLock(tmp_path) as lock:
        assert lock.held
    assert not (tmp_path / ".sprl-lock").exists()


def test_the_same_process_cannot_lock_twice(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path), pytest.raises(OutputError, match=f"process {os.getpid()}"):
        DirectoryLock(tmp_path).acquire()
    with DirectoryLock(tmp_path):
        pass


def test_contents_decide_where_flock_does_not_reach(tmp_path: Path) -> None:
    write_holder(tmp_path)  # this very process, alive
    with pytest.raises(OutputError, match="in use"):
        DirectoryLock(tmp_path).acquire()


@pytest.mark.parametrize(
    "changes",
    [{"pid": 2**22 + 1}, {"started": "1"}, {"boot": "another"}],
    ids=["gone", "pid reused", "rebooted"],
)
def test_a_stale_lock_is_recognised(tmp_path: Path, changes: dict[str, object]) -> None:
    write_holder(tmp_path, **changes)
    with DirectoryLock(tmp_path) as lock:
        assert json.loads(lock.file.read_text())["pid"] == os.getpid()


def test_a_half_written_lock_is_stale(tmp_path: Path) -> None:
    (tmp_path / ".sprl-lock").write_text('{"host": "x"')
    with DirectoryLock(tmp_path) as lock:
        assert lock.held


def test_another_host_is_never_assumed_dead(tmp_path: Path) -> None:
    write_holder(tmp_path, host="elsewhere")
    with pytest.raises(OutputError, match="on host elsewhere") as caught:
        DirectoryLock(tmp_path).acquire()
    assert str(tmp_path / ".sprl-lock") in caught.value.hint


def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    """The child lives on after the parent released; its inherited handle must not count."""
    lock = DirectoryLock(tmp_path).acquire()
    read_end, write_end = os.pipe()
    started_read, started_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.write(started_write, b"x")  # it runs, so its handlers after the fork are done
        os.read(read_end, 1)
        os._exit(0)
    try:
        os.read(started_read, 1)
        lock.forget()  # as if this process had died: the file stays
        write_holder(tmp_path, pid=2**22 + 1)
        with DirectoryLock(tmp_path) as second:
            assert second.held
    finally:
        for end in (read_end, write_end, started_read, started_write):
            os.close(end)
        os.waitpid(child, 0)
