"""Who says whether commanded moves happen: arena's engine, or probes that are calibrated on the real clips first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from stateplay_rl.evaluation.action_following import (
    ActionProbe,
    ActionReferee,
    CalibratedActions,
    Calibration,
    ProbedClip,
    calibrate,
    probe_clip,
    windows_of,
)
from stateplay_rl.evaluation.action_probes import real_probes
from stateplay_rl.evaluation.referee import RefereeCase
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.candidates import reference_frames
from stateplay_rl.stages.hud_choice import ARENA, GAME_OF_PRESET
from stateplay_rl.stores.conditions import ConditionRecord, ConditionStore
from stateplay_rl.stores.groups import GroupRecord

Setting = Literal["auto", "none"]


def make_actions(setting: Setting, conditions: ConditionStore, clips: int) -> ActionReferee | None:
    """The referee of commanded moves for videos of these conditions; calibrates its probes where it has to.

    Args:
        setting: `auto` or `none`.
        conditions: their manifest says which game they show; their real clips calibrate.
        clips: how many real clips, at most.

    Returns:
        None for `none`, and for clips of no known game.

    Raises:
        InputError: a clip is missing or cannot be decoded.
    """
    game = known_game(conditions)
    if setting == "none" or game is None:
        return None
    if game == ARENA:
        from stateplay_rl.arena.actions_seen import ArenaActions

        return ArenaActions()
    probes = real_probes()
    return CalibratedActions(probes, calibrate_probes(probes, conditions, clip_records(conditions, clips)))


def known_game(conditions: ConditionStore) -> str | None:
    """The game whose moves are known, None for other clips."""
    return GAME_OF_PRESET.get(str(conditions.manifest.config.get("preset", "")))


def clip_records(conditions: ConditionStore, count: int) -> list[ConditionRecord]:
    """The first `count` conditions with a real clip that no held-out result rests on, in their stored order."""
    return [record for record in conditions.select("pass") if record.clip is not None][:count]


def calibrate_probes(
    probes: Mapping[str, ActionProbe], conditions: ConditionStore, records: Sequence[ConditionRecord]
) -> dict[str, Calibration]:
    """Every probe's worth on real clips."""
    window = action_window(conditions)
    probed: dict[str, list[ProbedClip]] = {name: [] for name in probes}
    with Progress("calibrate probes", len(records), "clips") as progress:
        for record in records:
            frames_ThwC = reference_frames(conditions, record)
            assert frames_ThwC is not None, "only conditions with a clip calibrate"
            windows = windows_of(conditions.held_actions(record.condition_id), len(frames_ThwC), window)
            for name, probe in probes.items():
                probed[name].append(probe_clip(probe, frames_ThwC, windows, record.cluster_id))
            progress.advance()
    return {name: calibrate(name, clips) for name, clips in probed.items()}


def action_window(conditions: ConditionStore) -> int:
    """Rows over which a press is held in these conditions."""
    return int(conditions.manifest.config["clip"]["action_window"])


def case_of(conditions: ConditionStore, group: GroupRecord) -> RefereeCase:
    """What the videos of a group were asked to be."""
    name = group.condition_id
    held_RK = np.array(group.buttons, np.uint8)
    return RefereeCase(conditions.first_frame(name), held_RK, group.prompt, conditions.states(name))
