"""Hashes of files taken while they are written, so that sealing need not read large files again."""

from __future__ import annotations

from pathlib import Path

from stateplay_rl.stores import atomic
from stateplay_rl.stores.sealed import FileRef


class FileHasher:
    """Hashes of files taken while they were written; one is dropped when its file changed since."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, int, FileRef]] = {}

    def record(self, path: Path, sha256: str) -> FileRef:
        """Remember the hash of a file that has just been written."""
        status = path.stat()
        ref = FileRef(status.st_size, sha256)
        self._known[path] = (status.st_mtime_ns, status.st_ino, ref)
        return ref

    def ref(self, path: Path) -> FileRef:
        """Size and hash of a file, read again only when it is not known or has changed."""
        status = path.stat()
        known = self._known.get(path)
        if known is not None and known[:2] == (status.st_mtime_ns, status.st_ino) and known[2].size == status.st_size:
            return known[2]
        return FileRef(status.st_size, atomic.sha256_file(path))
