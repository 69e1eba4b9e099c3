"""Sessions: alive while their process is, and nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

from stateplay_rl.stores.session import Session


def test_a_session_is_alive_until_its_end(tmp_path: Path) -> None:
    one, two = Session(tmp_path), Session(tmp_path)
    assert one.name != two.name
    assert one.is_alive(one.name)
    assert one.is_alive(two.name)
    two.end()
    assert not one.is_alive(two.name)
    two.end()
    one.end()
    assert list((tmp_path / "sessions").iterdir()) == []


def test_the_session_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, Session(tmp_path).name.encode())
        os._exit(0)
    os.waitpid(child, 0)
    name = os.read(read, 64).decode()
    assert (tmp_path / "sessions" / name).is_dir()
    mine = Session(tmp_path)
    assert not mine.is_alive(name)
    assert not (tmp_path / "sessions" / name).exists()


def test_an_unknown_session_is_dead(tmp_path: Path) -> None:
    assert not Session(tmp_path).is_alive("0" * 32)
