"""Who is using a shared store right now: a lock of its own for every user."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from stateplay_rl.errors import OutputError
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import disk_errors
from stateplay_rl.stores.lock import DirectoryLock


class Session:
    """One user of a store, alive until `end` or the end of its process.

    Args:
        folder: the store.
    """

    def __init__(self, folder: Path) -> None:
        self._root = folder / layout.SESSIONS_FOLDER
        self.name = uuid.uuid4().hex
        with disk_errors(folder):
            (self._root / self.name).mkdir(parents=True)
        self._lock = DirectoryLock(self._root / self.name).acquire()

    def is_alive(self, name: str) -> bool:
        """Whether a session still runs; one of a host that cannot be asked counts as alive.

        What a dead one left behind is removed.
        """
        if name == self.name:
            return True
        folder = self._root / name
        if not folder.is_dir():
            return False
        lock = DirectoryLock(folder)
        try:
            lock.acquire()
        except (OutputError, FileNotFoundError):
            return folder.is_dir()
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)
        return False

    def end(self) -> None:
        """Give it up; a second call does nothing."""
        self._lock.release()
        shutil.rmtree(self._root / self.name, ignore_errors=True)
