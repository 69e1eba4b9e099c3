"""Power loss: a rename counts only when the file's bytes were flushed before it and the folder after it.

The plug cannot be pulled in a test; the order of system calls can be watched.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stateplay_rl.config.verify import InstallConfig
from stateplay_rl.stores import atomic, layout
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.manifest import OutputDirectory


class Watched:
    """Calls of `os.fsync` and `os.replace`, in order, with the real paths."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        real_fsync, real_replace = os.fsync, os.replace

        def fsync(descriptor: int) -> None:
            self.calls.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
            real_fsync(descriptor)

        def replace(source: os.PathLike[str] | str, target: os.PathLike[str] | str) -> None:
            # A folder is renamed with all that is in it.
            for path in sorted(Path(source).rglob("*")) if Path(source).is_dir() else []:
                assert ("fsync", str(path)) in self.calls, f"{path} was not flushed before the rename"
            self.calls.append(("replace", f"{source} -> {target}"))
            real_replace(source, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replace)

    def check_each_rename(self) -> int:
        """Every rename has its flush before it and its folder's flush after it."""
        renames = 0
        for number, (call, what) in enumerate(self.calls):
            if call == "replace":
                renames += 1
                source, _, target = what.partition(" -> ")
                assert ("fsync", source) in self.calls[:number], f"{source} was not flushed before its rename"
                after = self.calls[number:]
                assert ("fsync", str(Path(target).parent)) in after, f"the folder of {target} was not flushed"
        return renames


def write_folder(root: Path) -> None:
    with atomic.atomic_dir(root / "step-1") as temp:
        (temp / "a").write_text("a")
        (temp / "b").write_text("b")


def write_large(root: Path) -> None:
    with atomic.HashingWriter(root / "large") as writer:
        writer.write(b"abc")


def seal(root: Path) -> None:
    with OutputDirectory.open(
        root / "out",
        schema="verify",
        version=layout.SCHEMAS["verify"],
        command="verify",
        config=InstallConfig(),
        inputs={},
        resume=False,
        overwrite=False,
    ) as directory:
        directory.write_text("a.txt", "abc")
        directory.seal()


WRITERS: dict[str, Callable[[Path], object]] = {
    "file": lambda root: atomic.write_json(root / "a.json", {}),
    "large file": write_large,
    "folder": write_folder,
    "sealed directory": seal,
}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to name what was flushed")
@pytest.mark.parametrize("writer", WRITERS)
def test_every_rename_is_between_two_flushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str) -> None:
    watched = Watched(monkeypatch)
    WRITERS[writer](tmp_path.resolve())
    assert watched.check_each_rename() >= 1


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to name what was flushed")
def test_the_manifest_is_renamed_after_every_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    seal(tmp_path.resolve())
    renamed = [what.partition(" -> ")[2] for call, what in watched.calls if call == "replace"]
    assert Path(renamed[-1]).name == layout.MANIFEST


def test_a_line_is_flushed_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (flushed.append(descriptor), real(descriptor))[1])
    LineLog(tmp_path / "log.jsonl").append({"a": 1})
    assert flushed
