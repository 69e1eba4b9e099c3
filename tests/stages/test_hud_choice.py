"""Which HUD and which referee a setting means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.stages.hud_choice import make_reader, make_referee


def world(preset: str) -> WorldConfig:
    files: dict[str, Any] = dict.fromkeys(("transition_tokenizer", "vae", "text_encoder", "text_tokenizer"), Path("x"))
    return WorldConfig(name="w", preset=preset, files={"checkpoint": ["x"], **files})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "preset", "game"),
    [
        ("auto", "stateplay", "sf3"),
        ("auto", "stateplay-5b", "sf3"),
        ("auto", "arena", "arena"),
        ("sf3", "arena", "sf3"),
        ("arena", "arena", "arena"),
    ],
)
def test_readers(name: str, preset: str, game: str) -> None:
    reader = make_reader(name, preset)
    assert reader is not None
    assert reader.game == game


def test_no_reader_where_none_is_asked_for_or_known() -> None:
    assert make_reader("none", "stateplay") is None
    assert make_reader("auto", "chess") is None
    assert make_referee("none", world("arena")) is None
    with pytest.raises(UsageError, match="no HUD profile"):
        make_reader("chess", "stateplay")


def test_referees() -> None:
    arena, real = make_referee("auto", world("arena")), make_referee("auto", world("stateplay-5b"))
    assert arena is not None
    assert real is not None
    assert arena.name.startswith("arena-referee")
    assert real.name.startswith("hud-sf3")
    with pytest.raises(UsageError, match="arena's referee"):
        make_referee("arena", world("stateplay-5b"))
