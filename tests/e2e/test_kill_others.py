"""SIGKILL during the commands that take seconds: resumed, the result is that of one run."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import is_sealed, read_manifest
from tests.e2e.command_line import Arena, finish, run_elsewhere, start, succeed

pytestmark = pytest.mark.slow
KILLS = 2


def files_of(folder: Path) -> dict[str, str]:
    return {name: ref.sha256 for name, ref in read_manifest(folder, verify_files=True).files.items()}


def killed_often(command: list[object], out: Path, seed: int) -> None:
    """Kill at random moments, go on with what is left, then let it end."""
    draws = random.Random(seed)
    for _ in range(KILLS):
        process = start(*command, *(["--resume"] if out.exists() else []))
        time.sleep(draws.uniform(1.0, 6.0))
        process.kill()
        finish(process)
        if is_sealed(out):
            read_manifest(out, verify_files=True)
    result = run_elsewhere(*command, *(["--resume"] if out.exists() else []))
    assert result.code == 0, result.text
    assert not [path for path in out.rglob("*") if layout.is_private(path.name) and path.name != layout.LOCK]


def test_audit(arena: Arena, tmp_path: Path) -> None:
    killed_often(["audit-ckpt", "--world", "arena", "-q", "--out", tmp_path / "audit"], tmp_path / "audit", 1)
    assert files_of(tmp_path / "audit").keys() == files_of(arena.audit).keys()
    assert files_of(tmp_path / "audit")["provenance.parquet"] == files_of(arena.audit)["provenance.parquet"]


def test_report(arena: Arena, tmp_path: Path) -> None:
    succeed("report", arena.conditions, "--out", tmp_path / "whole")
    killed_often(["report", arena.conditions, "--out", tmp_path / "killed"], tmp_path / "killed", 2)
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
