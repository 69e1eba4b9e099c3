"""Where relative outputs go."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.stores.manifest import resolve_out


def test_relative_outputs_go_below_the_run_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RL_RUN_ROOT", raising=False)
    assert resolve_out(Path("x")) == Path("x")
    monkeypatch.setenv("RL_RUN_ROOT", str(tmp_path))
    assert resolve_out(Path("x")) == tmp_path / "x"
    assert resolve_out(Path("/abs/x")) == Path("/abs/x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_RUN_ROOT", "runs")
    once = resolve_out(Path("x"))
    assert once == resolve_out(once) == tmp_path / "runs" / "x"
