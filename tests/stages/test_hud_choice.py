"""Which HUD and which referee a setting means."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from stateplay_rl.errors import UsageError
from stateplay_rl.stages.hud_choice import make_reader, make_referee
from stateplay_rl.stores.conditions import ConditionStore


@dataclass
class Built:
    """A conditions directory as far as its manifest goes."""

    manifest: SimpleNamespace


def conditions(**config: str) -> ConditionStore:
    return cast(ConditionStore, Built(SimpleNamespace(config=config)))


@pytest.mark.parametrize(
    ("name", "preset", "game"),
    [
        ("auto", "stateplay", "sf3"),
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
    assert make_referee("none", conditions(preset="arena")) is None
    with pytest.raises(UsageError, match="no HUD profile"):
        make_reader("chess", "stateplay")


def test_the_referee_follows_what_the_conditions_were_built_with() -> None:
    arena, real = make_referee("auto", conditions(preset="arena")), make_referee("auto", conditions(preset="stateplay"))
    assert arena is not None
    assert real is not None
    assert arena.name.startswith("arena-referee")
    assert real.name.startswith("hud-sf3")
    named = make_referee("auto", conditions(preset="arena", hud="sf3"))
    assert named is not None
    assert named.name.startswith("hud-sf3")
    assert make_referee("auto", conditions(preset="stateplay", hud="none")) is None
    assert make_referee("auto", conditions()) is None
    with pytest.raises(UsageError, match="arena's referee"):
        make_referee("arena", conditions(preset="stateplay"))
