"""One process a directory: a lock file that says who holds it.

The kernel's `flock` decides on one host and vanishes with its process. The contents (host, boot, pid, process
start time) decide where `flock` does not reach: other hosts, and network mounts that ignore it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from stateplay_rl.errors import OutputError
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import disk_errors
from stateplay_rl.stores.foreign import parse_json

_ATTEMPTS = 20
_NO_FLOCK = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL})


@dataclass(frozen=True)
class LockHolder:
    """Who holds a lock. `started` is the process start time in clock ticks since boot, "" when unknown."""

    host: str
    boot: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> LockHolder:
        """This process."""
        return cls(socket.gethostname(), _boot_id(), os.getpid(), _process_start(os.getpid()))

    def alive(self) -> bool | None:
        """Whether that process still runs; None when it is on another host and cannot be asked."""
        if self.host != socket.gethostname():
            return None
        if self.boot != _boot_id():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # exists, owned by someone else
        # A reused pid has another start time.
        return self.started == _process_start(self.pid)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    """Field 22 of /proc/<pid>/stat; fields are counted after the last ")" since names may hold spaces."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # A zombie holds nothing any more.
    return "" if fields[0] == "Z" and pid != os.getpid() else fields[19]


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class DirectoryLock:
    """Exclusive lock on a directory, held until `release` or the end of the process.

    Args:
        folder: an existing directory.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / layout.LOCK
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def acquire(self) -> DirectoryLock:
        """Take the lock; a stale one (its process is gone) is taken over.

        Raises:
            OutputError: another process holds it, or may hold it on another host.
        """
        for _ in range(_ATTEMPTS):
            if self._try_acquire():
                _held.add(self)
                return self
        raise OutputError(f"{self.file} keeps changing hands", "wait for the other command and run again")

    def _try_acquire(self) -> bool:
        with disk_errors(self.file):
            descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _flock(descriptor):
                raise _refusal(self.file, _read_holder(descriptor))
            # The holder before us may have unlinked the file between our open and our flock.
            if not _same_file(descriptor, self.file):
                os.close(descriptor)
                return False
            holder = _read_holder(descriptor)
            if holder is not None and holder.alive() is not False:
                raise _refusal(self.file, holder)
            data = json.dumps(asdict(LockHolder.current())).encode()
            with disk_errors(self.file, len(data)):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, data, 0)
                os.fsync(descriptor)
        except OutputError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back and remove its file; a second call does nothing."""
        if self._descriptor is None:
            return
        # Unlinked while still held: nobody can own the file that we remove.
        self.file.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Close our handle without touching the file (a forked child does this)."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        _held.discard(self)

    def __enter__(self) -> DirectoryLock:
        return self if self.held else self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _forget_all() -> None:
    """A worker forked while we hold a lock must not keep it after we are killed."""
    for lock in list(_held):
        lock.forget()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_all)


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        # No flock on this mount: the contents alone decide.
    return True


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read_holder(descriptor: int) -> LockHolder | None:
    """The recorded holder; None for an empty or half-written file (its writer died while locking)."""
    try:
        return LockHolder(**parse_json(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return None


def _refusal(file: Path, holder: LockHolder | None) -> OutputError:
    if holder is None:
        return OutputError(f"{file.parent} is being locked by another command", "run again in a moment")
    who = f"process {holder.pid} on host {holder.host}"
    if holder.alive() is None:
        return OutputError(
            f"{file.parent} is locked by {who}",
            f"wait until it has ended; if that host is gone, remove {file} and run again with --resume",
        )
    return OutputError(f"{file.parent} is in use by {who}", "wait until it has ended, or stop it first")
