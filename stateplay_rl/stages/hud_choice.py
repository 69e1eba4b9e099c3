"""From settings to a HUD reader or a referee. Here, because arena's lies in a layer above `evaluation`."""

from __future__ import annotations

from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.evaluation.hud import HudReader, ProfileReader
from stateplay_rl.evaluation.profile import load_profile
from stateplay_rl.evaluation.referee import HudReferee, VideoReferee

AUTO, NONE, ARENA = "auto", "none", "arena"
GAME_OF_PRESET = {"stateplay": "sf3", "stateplay-5b": "sf3", ARENA: ARENA}
"""The game that a preset's clips and worlds show."""


def make_reader(name: str, preset: str) -> HudReader | None:
    """The reader that a setting asks for.

    Args:
        name: `auto`, `none`, `arena`, a packaged game, or a profile file.
        preset: of the clips or the world; decides what `auto` is.

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


def make_referee(name: str, world: WorldConfig) -> VideoReferee | None:
    """The referee for a world's held-out videos.

    Args:
        name: as in `make_reader`. On arena, `auto` is the referee that knows the engine's own trajectory.
        world: whose videos are judged.

    Raises:
        UsageError: as `make_reader`, or arena's referee for another world.
    """
    on_arena = world.preset == ARENA
    if name == ARENA and not on_arena:
        raise UsageError(f"arena's referee cannot read videos of world {world.name!r}", "use auto, or a HUD profile")
    if on_arena and name in (AUTO, ARENA):
        from stateplay_rl.arena.hud_referee import ArenaReferee

        return ArenaReferee()
    reader = make_reader(name, world.preset)
    return None if reader is None else HudReferee(reader)
