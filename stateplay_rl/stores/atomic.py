"""Atomic, durable writes and content hashes.

A final name never holds half a file: bytes go to a temporary sibling, are fsynced, renamed over the final
name, and the folder is fsynced, because a rename counts after a power loss only when its folder is on disk.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from stateplay_rl.errors import OutsideError, SprlError
from stateplay_rl.stores import layout

_CHUNK_BYTES = 1 << 20
_FULL = {
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "quota exceeded",
    errno.EFBIG: "larger than a file may be here (ulimit -f)",
}
_AGAIN = "run the same command again, with --resume where it has that option"
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@contextmanager
def disk_errors(path: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn a full, over-quota or read-only disk into a message with exit code 5.

    Args:
        path: what is being written, for the message.
        needed_bytes: bytes that the write needs, when known.

    Raises:
        OutsideError: the disk is full, over quota, read-only or failing; what was finished stays valid.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, SprlError):
            raise
        need = f", {needed_bytes} bytes needed" if needed_bytes is not None else ""
        if error.errno in _FULL:
            hint = f"free that space (or choose another --out), then {_AGAIN}"
            raise OutsideError(f"cannot write {path}: {_FULL[error.errno]}{need}{_free(path)}", hint) from error
        if error.errno in _READ_ONLY:
            hint = f"make the folder writable, or choose another --out; then {_AGAIN}"
            raise OutsideError(f"cannot write {path}: {error.strerror}{need}", hint) from error
        if error.errno == errno.EIO:
            raise OutsideError(f"cannot write {path}: {error.strerror}", "check the disk, then --resume") from error
        raise


def _free(path: Path) -> str:
    try:
        return f", {shutil.disk_usage(nearest_existing(path)).free} free"
    except OSError:
        return ""


def nearest_existing(path: Path) -> Path:
    """Nearest existing folder at or above `path`."""
    for candidate in (path, *path.parents):
        if candidate.is_dir():
            return candidate
    return Path(os.sep)


def require_space(path: Path, needed_bytes: int) -> None:
    """Refuse to start work that will not fit.

    Raises:
        OutsideError: fewer than `needed_bytes` are free where `path` lies.
    """
    free_bytes = shutil.disk_usage(nearest_existing(path.absolute())).free
    if free_bytes < needed_bytes:
        raise OutsideError(
            f"not enough space for {path}: {needed_bytes} bytes needed, {free_bytes} free",
            "free space or choose another --out",
        )


def fsync_file(path: Path) -> None:
    """Flush a closed file's bytes to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk; file systems without this operation are accepted."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network mounts refuse fsync on folders; their renames are synchronous on the server.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def atomic_path(final: Path, needed_bytes: int | None = None) -> Iterator[Path]:
    """Yield a temporary sibling to write; on success it becomes `final`, on failure it is removed."""
    temp = layout.temp_name(final, str(os.getpid()))
    with disk_errors(final, needed_bytes):
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temp
            fsync_file(temp)
            os.replace(temp, final)
            fsync_folder(final.parent)
        finally:
            temp.unlink(missing_ok=True)


class HashingWriter:
    """Binary writer to a final name that hashes while it writes, so that large files are read once only.

    Use as a context manager; `sha256` and `size` are valid after the block.
    """

    def __init__(self, final: Path) -> None:
        self.final = final
        self.size = 0
        self._digest = hashlib.sha256()
        self._temp = layout.temp_name(final, str(os.getpid()))
        self._file: BinaryIO | None = None

    def __enter__(self) -> HashingWriter:
        with disk_errors(self.final):
            self.final.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temp.open("wb")
        return self

    def write(self, data: bytes) -> int:
        """Append bytes and add them to the hash."""
        assert self._file is not None, "HashingWriter is used as a context manager"
        with disk_errors(self.final, self.size + len(data)):
            self._file.write(data)
        self._digest.update(data)
        self.size += len(data)
        return len(data)

    @property
    def sha256(self) -> str:
        """Hex digest of all bytes written so far."""
        return self._digest.hexdigest()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        try:
            with disk_errors(self.final, self.size):
                try:
                    if kind is None:
                        self._file.flush()
                        os.fsync(self._file.fileno())
                finally:
                    self._file.close()
                if kind is None:
                    os.replace(self._temp, self.final)
                    fsync_folder(self.final.parent)
        finally:
            self._temp.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> str:
    """Write `data` to `path` atomically and durably; returns the sha256.

    Raises:
        OutsideError: disk full, over quota or read-only.
    """
    with disk_errors(path, len(data)), HashingWriter(path) as writer:
        writer.write(data)
    return writer.sha256


def write_text(path: Path, text: str) -> str:
    """Write UTF-8 text atomically; returns the sha256 of its bytes."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> str:
    """Write readable JSON atomically; NaN and infinities raise ValueError. Returns the sha256."""
    return write_text(path, pretty_json(value))


@contextmanager
def atomic_dir(final: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling folder; on success everything in it is fsynced and it becomes `final`.

    Args:
        final: the folder to make.
        replace: whether an existing `final` is swapped out; without it one is an error (FileExistsError).
    """
    temp = layout.temp_name(final, str(os.getpid()))
    with disk_errors(final):
        if final.exists() and not replace:
            raise FileExistsError(errno.EEXIST, "folder exists", str(final))
        shutil.rmtree(temp, ignore_errors=True)
        temp.mkdir(parents=True)
        try:
            yield temp
            _fsync_tree(temp)
            old = layout.temp_name(final, f"{os.getpid()}-old")
            if final.exists():
                os.replace(final, old)
            os.replace(temp, final)
            fsync_folder(final.parent)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(temp, ignore_errors=True)


def _fsync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            fsync_file(Path(folder, name))
        fsync_folder(Path(folder))


def remove_leftovers(root: Path) -> None:
    """Remove what killed writes left under temporary names, at any depth."""
    for folder, folders, names in os.walk(root):
        for name in [n for n in folders if layout.TEMP_MARK in n]:
            shutil.rmtree(Path(folder, name))
            folders.remove(name)
        for name in names:
            if layout.TEMP_MARK in name:
                Path(folder, name).unlink(missing_ok=True)


def sha256_bytes(data: bytes) -> str:
    """Hex sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN. What hashes are taken over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def pretty_json(value: Any) -> str:
    """JSON for people, with a final newline; no NaN."""
    return json.dumps(value, indent=2, sort_keys=False, ensure_ascii=False, allow_nan=False) + "\n"


def sha256_json(value: Any) -> str:
    """Hex sha256 of the canonical JSON of a value."""
    # surrogatepass: a prompt read from a broken file must hash, not crash.
    return sha256_bytes(canonical_json(value).encode("utf-8", "surrogatepass"))
