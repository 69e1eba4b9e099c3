"""From settings to a HUD reader or a referee. Here, because arena's lies in a layer above `evaluation`."""

from __future__ import annotations

from stateplay_rl.errors import UsageError
from stateplay_rl.evaluation.hud import HudReader, ProfileReader
from stateplay_rl.evaluation.profile import load_profile
from stateplay_rl.evaluation.referee import HudReferee, VideoReferee
from stateplay_rl.stores.conditions import ConditionStore

AUTO, NONE, ARENA = "auto", "none", "arena"
GAME_OF_PRESET = {"stateplay": "sf3", ARENA: ARENA}
"""The game that a preset's clips show."""


def make_reader(name: str, preset: str) -> HudReader | None:
    """The reader that a setting asks for.

    Args:
        name: `auto`, `none`, `arena`, a packaged game, or a profile file.
        preset: of the clips; decides what `auto` is.

    Returns:
        None for `none`, and for `auto` where no HUD of the preset's game is known.

    Raises:
        UsageError: no such game and no such file, or a profile that is not valid.
    """
    game = GAME_OF_PRESET.get(preset, NONE) if name == AUTO else name
    if game == NONE:
        return None
    if game == ARENA:
        from stateplay_rl.arena.hud_referee import ArenaReader

        return ArenaReader()
    return ProfileReader(load_profile(game))


def make_referee(name: str, conditions: ConditionStore) -> VideoReferee | None:
    """The referee for videos that were rolled out from a conditions directory.

    Args:
        name: as in `make_reader`; `auto` is the HUD that the directory was built with (its preset's, or the one that
            was named then). For arena that is the referee that knows the engine's own trajectory.
        conditions: the directory; its manifest says which game's clips it holds.

    Raises:
        UsageError: as `make_reader`, or arena's referee for another game's clips.
    """
    built_with = conditions.manifest.config
    preset, hud = str(built_with.get("preset", "")), str(built_with.get("hud", AUTO))
    wanted = hud if name == AUTO else name
    if wanted == ARENA and preset != ARENA:
        raise UsageError(f"arena's referee cannot read clips of preset {preset!r}", "use auto, or a HUD profile")
    if preset == ARENA and wanted in (AUTO, ARENA):
        from stateplay_rl.arena.hud_referee import ArenaReferee

        return ArenaReferee()
    reader = make_reader(wanted, preset)
    return None if reader is None else HudReferee(reader)
