"""Secrets of the environment: blanked out, refused in settings, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.config.score import ScoreConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.redaction import redact, redact_json, refuse_secrets

KEY = "sk-0123456789"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    monkeypatch.setenv("SHORT_TOKEN", "short")
    monkeypatch.setenv("HARMLESS", "harmless-value")


def test_texts() -> None:
    assert redact(f"a {KEY}, a short harmless-value") == "a <SOME_API_KEY>, a short harmless-value"
    value = {"a": [KEY, 1, None], KEY: {"b": f"x{KEY}"}}
    assert redact_json(value) == {"a": ["<SOME_API_KEY>", 1, None], "<SOME_API_KEY>": {"b": "x<SOME_API_KEY>"}}


@pytest.mark.parametrize("config", [{"a": {"b": KEY}}, {"a": {"b": ["x", KEY]}}])
def test_settings_that_are_a_secret_are_refused_without_printing_it(config: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"'a\.b' .* SOME_API_KEY") as caught:
        refuse_secrets(config)
    assert KEY not in str(caught.value)
    refuse_secrets({"a": f"{KEY}/folder", "b": "short", "c": "SOME_API_KEY"})


def test_no_output_directory_is_begun_with_a_secret(tmp_path: Path) -> None:
    config = ScoreConfig.model_validate({"judge": {"name": "package.module:Class", "options": {"api_key": KEY}}})
    with pytest.raises(UsageError, match=r"judge\.options\.api_key"):
        OutputDirectory.open(
            tmp_path / "scores", schema="scores", version=layout.SCHEMAS["scores"], command="score", config=config,
            inputs={}, resume=False, overwrite=False,
        )  # fmt: skip
    assert not (tmp_path / "scores").exists()
