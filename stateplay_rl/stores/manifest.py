"""The one way to write a directory: refusals first, then the lock, then the work, the manifest last."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from stateplay_rl.config.base import FrozenConfig, config_dict, dump_config
from stateplay_rl.errors import UsageError
from stateplay_rl.stores import atomic, environment, layout, refusal
from stateplay_rl.stores.file_hasher import FileHasher
from stateplay_rl.stores.lock import DirectoryLock
from stateplay_rl.stores.redaction import refuse_secrets
from stateplay_rl.stores.refusal import resolve_out
from stateplay_rl.stores.resume_rules import OutputRequest, refuse_state
from stateplay_rl.stores.sealed import (
    FileRef,
    InputRef,
    Manifest,
    find_input,
    input_ref,
    is_sealed,
    manifest_sha256,
    read_manifest,
    versions_changed,
)
from stateplay_rl.stores.unfinished import UnfinishedRecord, read_unfinished

__all__ = [
    "FileHasher",
    "FileRef",
    "InputRef",
    "Manifest",
    "OutputDirectory",
    "find_input",
    "is_sealed",
    "manifest_sha256",
    "read_manifest",
    "resolve_out",
    "utc_now",
]


def utc_now() -> str:
    """Time for records, UTC with milliseconds. Ordering never depends on it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class OutputDirectory:
    """A directory being written, under its lock.

    Attributes:
        path: the directory, symlinks resolved.
        already_sealed: it was finished before; nothing is to be done and nothing may be written.
        resumed: the work of an earlier process goes on here.
        notices: software changes since the directory was begun, for the user's eyes.
    """

    path: Path
    record: UnfinishedRecord
    lock: DirectoryLock
    already_sealed: bool = False
    resumed: bool = False
    notices: tuple[str, ...] = ()
    hasher: FileHasher = field(default_factory=FileHasher)

    @classmethod
    def open(
        cls,
        out: Path,
        *,
        schema: str,
        version: int,
        command: str,
        config: FrozenConfig,
        inputs: Mapping[str, Path],
        resume: bool,
        overwrite: bool,
        protected: Sequence[Path] = (),
        extend: bool = False,
    ) -> OutputDirectory:
        """Refuse, or lock the directory and make it ready to be written.

        Args:
            out: the directory; see `resolve_out` for relative paths.
            schema: a name of `layout.SCHEMAS`.
            version: schema version that is written.
            command: subcommand's name.
            config: resolved config, saved as ``config.yaml``.
            inputs: named directories or files that are read; recorded by hash.
            resume: go on with an unfinished directory.
            overwrite: empty a finished, unfinished or foreign directory first.
            protected: further paths that the output must not overlap with.
            extend: open a sealed directory again (with `resume`): its manifest is kept beside the next one.

        Raises:
            OutputError: overlap, not empty, unfinished without `resume`, or locked.
            UsageError: `resume` with a changed config or other inputs, or together with `overwrite`; a setting that
                is the value of a secret environment variable.
            InputError: an input does not exist or is damaged.
            OutsideError: the disk is full or read-only.
        """
        if resume and overwrite:
            raise UsageError("--resume and --overwrite exclude each other", "give one of them")
        refuse_secrets(config_dict(config))
        refusal.refuse_overlap(out, inputs, protected)
        refs = {name: input_ref(path, out) for name, path in inputs.items()}
        real = Path(os.path.realpath(out))
        request = OutputRequest(real, schema, version, command, config, refs, resume, overwrite, extend)
        refuse_state(request)
        with atomic.disk_errors(real):
            real.mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock(real).acquire()
        try:
            refuse_state(request)  # again: another process may have worked here until it gave up the lock
            return _prepare(request, lock)
        except BaseException:
            lock.release()
            raise

    def file(self, name: str) -> Path:
        """Absolute path of a file of this directory; its folder is made."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write_bytes(self, name: str, data: bytes) -> Path:
        """Write a file atomically and keep its hash for the manifest."""
        path = self.path / name
        self.hasher.record(path, atomic.write_bytes(path, data))
        return path

    def write_text(self, name: str, text: str) -> Path:
        """Write UTF-8 text atomically and keep its hash."""
        return self.write_bytes(name, text.encode("utf-8"))

    def write_json(self, name: str, value: Any) -> Path:
        """Write JSON atomically and keep its hash; NaN raises ValueError."""
        return self.write_text(name, atomic.pretty_json(value))

    @contextmanager
    def writer(self, name: str) -> Iterator[atomic.HashingWriter]:
        """Stream a large file: hashed while written, in place after the block."""
        with atomic.HashingWriter(self.path / name) as writer:
            yield writer
        self.hasher.record(self.path / name, writer.sha256)

    def seal(self, extra: Mapping[str, Any] | None = None, seeds: Mapping[str, Any] | None = None) -> Manifest:
        """Hash what is not hashed yet, write the manifest last, release the lock.

        Args:
            extra: facts of this kind of directory, plain JSON values.
            seeds: the seeds that decided the contents.

        Raises:
            ValueError: already sealed, or `extra` holds NaN.
        """
        if self.already_sealed or not self.lock.held:
            raise ValueError(f"{self.path} is already sealed or closed")
        files = {name: self.hasher.ref(self.path / name) for name in sealed_names(self.path)}
        record = self.record
        manifest = Manifest(
            schema_name=record.schema,
            schema_version=record.version,
            run_id=record.run_id,
            command=record.command,
            config=record.config,
            seeds=dict(seeds or {}),
            started_utc=record.started_utc,
            ended_utc=utc_now(),
            versions=environment.software_versions(),
            inputs=record.inputs,
            files=files,
            extra={**record.extra(), **(extra or {})},
            gpus=environment.gpu_names(),
            world_size=environment.world_size(),
        )
        atomic.write_json(self.path / layout.MANIFEST, manifest.to_json())
        (self.path / layout.UNFINISHED).unlink(missing_ok=True)
        self.already_sealed = True
        self.close()
        return read_manifest(self.path, schema=record.schema)

    def close(self) -> None:
        """Release the lock; without `seal` the directory stays unfinished and can be resumed."""
        self.lock.release()

    def __enter__(self) -> OutputDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sealed_names(root: Path) -> list[str]:
    """Names of all files that a manifest of `root` lists, sorted.

    Of a nested sealed directory only its manifest is listed: that manifest answers for its files.
    """
    names: list[str] = []
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        if here != root and layout.MANIFEST in files:
            names.append((here / layout.MANIFEST).relative_to(root).as_posix())
            folders.clear()
            continue
        folders[:] = [name for name in folders if not layout.is_private(name)]
        own = {layout.MANIFEST, layout.UNFINISHED} if here == root else set()
        names += [
            (here / name).relative_to(root).as_posix()
            for name in files
            if not layout.is_private(name) and name not in own
        ]
    return sorted(names)


def _prepare(request: OutputRequest, lock: DirectoryLock) -> OutputDirectory:
    """Under the lock: empty, go on, or begin the directory."""
    out = request.out
    if request.overwrite:
        _empty(out)
    if is_sealed(out):
        manifest = read_manifest(out, schema=request.schema)
        if request.extend:
            return _reopen(request, manifest, lock)
        record = _record(request, manifest.run_id, manifest.started_utc)
        lock.release()
        return OutputDirectory(out, record, lock, already_sealed=True, resumed=True)
    atomic.remove_leftovers(out)
    if (out / layout.UNFINISHED).is_file():
        before = read_unfinished(out)
        record = _record(request, before.run_id, before.started_utc, before.earlier)
        notices = versions_changed(before.versions, record.versions)
        if record != before:
            _begin(out, record, request.config)
        elif not (out / layout.CONFIG).is_file():
            atomic.write_text(out / layout.CONFIG, dump_config(request.config))
        return OutputDirectory(out, record, lock, resumed=True, notices=notices)
    record = _record(request, uuid.uuid4().hex, utc_now())
    _begin(out, record, request.config)
    return OutputDirectory(out, record, lock)


def _record(request: OutputRequest, run_id: str, started_utc: str, earlier: Sequence[str] = ()) -> UnfinishedRecord:
    config = config_dict(request.config)
    return UnfinishedRecord(
        schema=request.schema,
        version=request.version,
        run_id=run_id,
        command=request.command,
        config_sha256=atomic.sha256_json(config),
        config=config,
        inputs=dict(request.refs),
        started_utc=started_utc,
        versions=environment.software_versions(),
        earlier=tuple(earlier),
    )


def _begin(out: Path, record: UnfinishedRecord, config: FrozenConfig) -> None:
    # The record first: whatever a kill leaves behind after it is recognised as ours.
    atomic.write_json(out / layout.UNFINISHED, record.to_json())
    atomic.write_text(out / layout.CONFIG, dump_config(config))


def _reopen(request: OutputRequest, manifest: Manifest, lock: DirectoryLock) -> OutputDirectory:
    """Make a sealed directory writable again; at every instant it is sealed or unfinished."""
    out = request.out
    kept = out / layout.old_manifest(len(list(out.glob(layout.OLD_MANIFESTS))))
    earlier = (*manifest.extra.get("earlier_manifests", ()), manifest.sha256)
    record = _record(request, manifest.run_id, manifest.started_utc, earlier)
    _begin(out, record, request.config)
    with atomic.disk_errors(kept):
        os.replace(out / layout.MANIFEST, kept)
        atomic.fsync_folder(out)
    notices = versions_changed(manifest.versions, record.versions)
    return OutputDirectory(out, record, lock, resumed=True, notices=notices)


def _empty(out: Path) -> None:
    """Remove everything but the lock, the manifest first: a half-emptied directory must not look sealed."""
    with atomic.disk_errors(out):
        for name in (layout.MANIFEST, layout.UNFINISHED):
            (out / name).unlink(missing_ok=True)
        for entry in out.iterdir():
            if entry.name == layout.LOCK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
