"""Clips, audit and conditions of arena, made once for all end-to-end tests."""

from __future__ import annotations

import pytest

from stateplay_rl.arena.clips import METADATA_FILE, write_clips
from tests.e2e.command_line import Arena, succeed


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Arena:
    root = tmp_path_factory.mktemp("arena")
    made = Arena(root / "clips", root / "audit", root / "conditions", root / "encoded")
    write_clips(made.clips, 24, seed=3)
    succeed("audit-ckpt", "--world", "arena", "--out", made.audit, "-q")
    csv = ("--csv", made.clips / METADATA_FILE, "--preset", "arena", "--heldout", 4, "--workers", 1)
    succeed("build-conditions", *csv, "--out", made.conditions, "-q")
    return made


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs where the test says, and lines that a narrow terminal does not break."""
    monkeypatch.delenv("RL_RUN_ROOT", raising=False)
    monkeypatch.setenv("COLUMNS", "500")
