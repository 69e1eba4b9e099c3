"""Shared options mean the same everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from stateplay_rl import runtime
from stateplay_rl.cli import options
from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.errors import UsageError


class Settings(FrozenConfig):
    seed: int = 0
    rate: float = 1.0


def test_precedence_of_file_set_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("seed: 1\nrate: 2.0\n")
    config = options.resolve_config(Settings, file, ["seed=2"], {"seed": 3, "rate": None})
    assert config == Settings(seed=3, rate=2.0)
    assert options.resolve_config(Settings, None, None) == Settings()
    with pytest.raises(UsageError, match="'sed'"):
        options.resolve_config(Settings, None, ["sed=2"])


def test_option_types_in_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, seen = typer.Typer(), {}

    @app.command()
    def work(
        out: options.OutOption,
        resume: options.ResumeOption = False,
        overrides: options.SetOption = None,
        quiet: options.QuietOption = False,
    ) -> None:
        seen.update(out=out, resume=resume, overrides=overrides, quiet=runtime.is_quiet())

    monkeypatch.setenv("RL_RUN_ROOT", str(tmp_path))
    result = CliRunner().invoke(app, ["-o", "x", "--resume", "-s", "a=1", "--set", "b=2", "-q"])
    runtime.set_quiet(False)
    assert result.exit_code == 0, result.output
    assert seen == {"out": tmp_path / "x", "resume": True, "overrides": ["a=1", "b=2"], "quiet": True}
